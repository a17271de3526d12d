"""A network that was saved is rebuilt from its folder alone, and gives the same outputs bit for bit."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch import nn

from evenly.data import Data, Texts
from evenly.errors import EvenlyError
from evenly.methods.dfr import replace_weights
from evenly.models import encoded, factory
from evenly.models.standardised import Standardised
from evenly.runs.network import NetworkSpec, load_network, read_state, save_network

TEXTS = ["a good film", "a bad film", "good book", "bad book", "very good", "very bad"]
IMAGES = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


class Tied(nn.Module):
    """The last layer's weights are the embedding's, as in many language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.last = nn.Linear(3, 4, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x):
        return self.last(x[:, :3] @ torch.ones(3, 3))


def trained(network: nn.Module, inputs: torch.Tensor) -> nn.Module:
    """The network after a step, which moves weights and running statistics."""
    torch.manual_seed(5)
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    network(inputs).square().mean().backward()
    optimizer.step()
    return network.eval()


def by_name(name, inputs, classes=3, texts=None, **options):
    shape = () if texts is not None else tuple(inputs.shape[1:])
    fresh, listed = factory(name, shape, classes, 3, texts=texts, **options)
    network = trained(fresh(), inputs)
    return network, NetworkSpec(listed, options, shape, classes)


def mlp():
    return *by_name("mlp", ROWS, hidden=[7]), ROWS


def resnet_behind_scaling():
    fresh, name = factory("resnet18", (3, 32, 32), 2, 0)
    network = trained(Standardised(fresh(), [0.4, 0.5, 0.6], [0.2, 0.3, 0.1]), IMAGES)
    return network, NetworkSpec(name, {}, (3, 32, 32), 2, scaled=3), IMAGES


def bag_of_words():
    data = Data((Texts(TEXTS), [1, 0] * 3))
    fresh, _ = factory("bag_of_words", (), 2, 0, texts=TEXTS, min_count=1)
    ids = encoded(data, fresh()).train.inputs
    return *by_name("bag-of-words", ids, 2, TEXTS, min_count=1, hidden=[5]), ids


def with_a_bias_of_dfr():
    network, spec, _ = without_bias()
    replace_weights(network[-1], torch.randn(2, 4).double(), torch.randn(2).double())
    return network, spec, ROWS


def without_bias():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    return trained(network, ROWS), NetworkSpec("Sequential as given", input_shape=(4,), own=True), ROWS


CASES = {"mlp": mlp, "resnet18 behind scaling": resnet_behind_scaling, "bag of words": bag_of_words}


def same_outputs(network, other, inputs):
    with torch.no_grad():
        return torch.equal(network(inputs), other.eval()(inputs))


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_equal_bit_for_bit(case, tmp_path):
    network, spec, inputs = CASES[case]()
    save_network(network, tmp_path / "here")
    folder = shutil.move(tmp_path / "here", tmp_path / "there")
    stored = NetworkSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert stored == NetworkSpec.from_dict(spec.to_dict())
    torch.manual_seed(11)
    before = torch.get_rng_state()
    assert same_outputs(network, load_network(stored, tmp_path / "there"), inputs)
    assert torch.equal(torch.get_rng_state(), before)
    assert folder


def test_a_bag_of_words_encodes_as_before(tmp_path):
    network, spec, _ = bag_of_words()
    save_network(network, tmp_path)
    again = load_network(spec, tmp_path)
    assert again.encoding == network.encoding
    assert torch.equal(again.encode(["a very bad film", "unknown"]), network.encode(["a very bad film", "unknown"]))


def test_a_network_fine_tuned_from_weights_needs_them_no_more(tmp_path):
    start = factory("mlp", (4,), 3, 0)[0]()
    torch.save(start.state_dict(), tmp_path / "start.pt")
    network, spec = by_name("mlp", ROWS, weights=str(tmp_path / "start.pt"))
    assert "weights" not in spec.options
    save_network(network, tmp_path / "run")
    (tmp_path / "start.pt").unlink()
    assert same_outputs(network, load_network(spec, tmp_path / "run"), ROWS)


def test_a_bias_that_dfr_added_comes_back(tmp_path):
    network, spec, inputs = with_a_bias_of_dfr()
    save_network(network, tmp_path)
    fresh = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    again = load_network(spec, tmp_path, fresh)
    assert same_outputs(network, again, inputs)
    assert again[-1].bias is not None
    assert fresh[-1].bias is None


def test_a_module_of_the_users_is_copied_and_not_changed(tmp_path):
    network, spec, inputs = without_bias()
    save_network(network, tmp_path)
    fresh = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    weight = fresh[0].weight.detach().clone()
    for own in (fresh, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))):
        assert same_outputs(network, load_network(spec, tmp_path, own), inputs)
    assert torch.equal(fresh[0].weight, weight)


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    network = trained(Tied(), ROWS)
    spec = NetworkSpec("Tied as given", own=True)
    save_network(network, tmp_path)
    assert list(read_state(tmp_path / "model.safetensors")) == ["embedding.weight", "last.weight"]
    assert (tmp_path / "model.safetensors").read_bytes().count(b'"data_offsets"') == 1
    again = load_network(spec, tmp_path, Tied())
    assert same_outputs(network, again, ROWS)
    assert again.last.weight is again.embedding.weight


def test_a_folder_that_cannot_be_written_is_read(tmp_path):
    network, spec, inputs = bag_of_words()
    save_network(network, tmp_path / "run")
    files = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for path in (*files, tmp_path / "run"):
        path.chmod(0o555)
    try:
        assert same_outputs(network, load_network(spec, tmp_path / "run"), inputs)
        assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == files
    finally:
        (tmp_path / "run").chmod(0o755)


def test_saving_again_replaces_the_network(tmp_path):
    network, spec, inputs = mlp()
    save_network(network, tmp_path)
    save_network(network, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert same_outputs(network, load_network(spec, tmp_path), inputs)


def damage(folder, case):
    weights = folder / "model.safetensors"
    if case == "no weights":
        weights.unlink()
    elif case == "cut short":
        weights.write_bytes(weights.read_bytes()[:-9])
    elif case == "no words":
        (folder / "vocabulary.json").unlink()
    elif case == "strange words":
        (folder / "vocabulary.json").write_text('{"words": ["a"]}')


REFUSED = {
    "no weights": "holds no model.safetensors; copy the run's folder again, or remove it and train again",
    "cut short": r"model.safetensors is damaged \(.*\); copy the run's folder again",
    "no words": "vocabulary.json, the words of a bag of words, is missing or damaged; copy",
    "strange words": "vocabulary.json, the words of a bag of words, is missing or damaged; copy",
}


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_folders_are_refused_in_a_line(case, tmp_path):
    network, spec, _ = bag_of_words()
    save_network(network, tmp_path)
    damage(tmp_path, case)
    with pytest.raises(EvenlyError, match=REFUSED[case]) as refusal:
        load_network(spec, tmp_path)
    assert "\n" not in str(refusal.value)


def test_another_network_is_refused_in_a_line(tmp_path):
    network, spec, _ = mlp()
    save_network(network, tmp_path)
    own = NetworkSpec("MLP as given", input_shape=(4,), own=True)
    with pytest.raises(EvenlyError, match=r"the weights of MLP as given, a module of your own; give it: evenly.load\("):
        load_network(own, tmp_path)
    with pytest.raises(EvenlyError, match="holds mlp, which is rebuilt by its name; leave `model` out"):
        load_network(spec, tmp_path, network)
    for other, message in (
        (nn.Linear(4, 3), "it lacks bias; give the module that was trained"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 7)), "it has beside those of it 3.bias"),
        (factory("mlp", (4,), 3, 0, hidden=(8,))[0](), r"has 1.bias of shape \(7,\), not \(8,\)"),
    ):
        with pytest.raises(EvenlyError, match=message):
            load_network(own, tmp_path, other)


def test_a_state_that_is_no_tensor_is_refused(tmp_path):
    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"count": 3}

        def set_extra_state(self, state):
            pass

    with pytest.raises(EvenlyError, match="_extra_state in the state of Counting is a dict; keep it in a buffer"):
        save_network(Counting(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18"])
def test_models_of_libraries_are_rebuilt_without_their_weights(name, tmp_path):
    pytest.importorskip(name.partition(":")[0])
    network, spec = by_name(name, IMAGES, 2)
    save_network(network, tmp_path)
    assert same_outputs(network, load_network(spec, tmp_path), IMAGES)
