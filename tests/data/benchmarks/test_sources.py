"""Downloads from a server on this machine: kept only with the right checksum, whole or not at all."""

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from evenly import EvenlyError
from evenly.data.benchmarks import download
from evenly.data.benchmarks.sources import SOURCES, Source, fetch
from evenly.data.images.cache import whole_file

CONTENT = bytes(range(256)) * 9000  # more than one chunk


@pytest.fixture
def server():
    files = {"/file.bin": CONTENT}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"") + (100 if self.path == "/short.bin" else 0)))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", files
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_is_kept_if_its_checksum_is_right(tmp_path, server, kind):
    fetch(f"{server[0]}/file.bin", tmp_path / "file.bin", hashlib.new(kind, CONTENT).hexdigest().upper())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("length", [32, 64])
def test_another_checksum_is_refused_and_nothing_kept(tmp_path, server, length):
    with pytest.raises(EvenlyError, match=f"not the published {'0' * length}; nothing was stored") as refusal:
        fetch(f"{server[0]}/file.bin", tmp_path / "file.bin", "0" * length)
    assert hashlib.new("md5" if length == 32 else "sha256", CONTENT).hexdigest() in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_what_was_there(tmp_path, server, refused):
    (tmp_path / "file.bin").write_text("before")
    server[1]["/short.bin"] = CONTENT
    for path in ("/file.bin", "/absent.bin", "/short.bin"):
        refused(path, fetch, server[0] + path, tmp_path / "file.bin", "0" * 32)
    assert (tmp_path / "file.bin").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("url", "checksum", "message"),
    [
        ("file:///etc/hostname", "0" * 32, "is not an http address"),
        ("http://127.0.0.1:1/x", "0" * 32, r"http://127.0.0.1:1/x cannot be downloaded \(.*refused.*check the network"),
        ("http://127.0.0.1:1/x", "abc", "checksum 'abc' is neither md5"),
    ],
)
def test_refuses_in_one_line(tmp_path, url, checksum, message, refused):
    refused(message, fetch, url, tmp_path / "x", checksum)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_beside_its_place_and_then_moved(tmp_path):
    with whole_file(tmp_path / "file") as file:
        file.write(b"half")
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def archive(kind, names):
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as packed:
            for name in names:
                packed.writestr(name, name)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name in names:
                (entry := tarfile.TarInfo(name)).size = len(name)
                tar.addfile(entry, io.BytesIO(name.encode()))
    return buffer.getvalue()


def offered(server, monkeypatch, **files):
    """Let "cifar10" be downloaded from these files."""
    sources = []
    for key, content in files.items():
        name = key.replace("_", ".")
        server[1][f"/{name}"] = content
        sources.append(Source(f"{server[0]}/{name}", hashlib.md5(content).hexdigest()))
    monkeypatch.setitem(SOURCES, "cifar10", tuple(sources))


def test_archives_are_unpacked_and_other_files_moved(tmp_path, server, monkeypatch, refused):
    packed = {"a_tar_gz": archive("tar", ("inner/one", "inner/two")), "b_zip": archive("zip", ("three",))}
    offered(server, monkeypatch, **packed, c_gz=b"as it is")
    place = download("cifar10", tmp_path / "new" / "place")
    assert place == tmp_path / "new" / "place"
    files = {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}
    assert files == {"inner/one": "inner/one", "inner/two": "inner/two", "three": "three", "c.gz": "as it is"}
    assert [path.name for path in place.parent.iterdir()] == ["place"]
    refused("exists already; remove it", download, "cifar10", place)


def test_goes_to_the_shared_folder_and_takes_an_empty_one(tmp_path, server, monkeypatch, refused):
    offered(server, monkeypatch, c_gz=b"as it is")
    refused("EVENLY_DATA is not set", download, "cifar10")
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    assert (download("cifar10") / "c.gz").read_bytes() == b"as it is"


def test_nothing_is_left_of_a_download_that_failed(tmp_path, server, monkeypatch, refused):
    offered(server, monkeypatch, a_gz=b"one", b_gz=b"two")
    del server[1]["/b.gz"]
    refused(r"b.gz cannot be downloaded", download, "cifar10", tmp_path / "place")
    for damaged in (b"no archive", archive("tar", ("../outside",))):
        offered(server, monkeypatch, a_tar_gz=damaged)
        refused(r"a.tar.gz cannot be unpacked", download, "cifar10", tmp_path / "place")
    assert list(tmp_path.iterdir()) == []


def test_refuses_a_place_that_cannot_be_and_a_name_that_is_not(tmp_path, refused):
    (tmp_path / "file").write_text("")
    refused("cifar10 cannot be stored in", download, "cifar10", tmp_path / "file" / "below")
    refused("exists already", download, "cifar10", tmp_path / "file")
    refused("no data set to download is called 'cifar11'; did you mean 'cifar10'", download, "cifar11", tmp_path)


def test_every_source_has_a_checksum_and_a_name_of_its_own():
    sources = [source for group in SOURCES.values() for source in group]
    assert all(len(source.checksum) in (32, 64) and int(source.checksum, 16) for source in sources)
    assert len({source.checksum for source in sources}) == len(sources) == 13
