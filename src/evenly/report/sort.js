"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const upwards = head.getAttribute("aria-sort") !== "ascending";
      const value = (row) => {
        const cell = row.cells[column];
        const number = Number.parseFloat(cell.dataset.value);
        return Number.isNaN(number) ? cell.textContent.trim() : number;
      };
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (typeof x === "number" && typeof y === "number") return x - y;
        if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
        return x.localeCompare(y, undefined, { numeric: true });
      };
      const rows = Array.from(table.tBodies[0].rows).sort((a, b) => (upwards ? compare(a, b) : compare(b, a)));
      table.tBodies[0].append(...rows);
      heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
    });
  });
}
