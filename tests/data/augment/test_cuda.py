"""On a GPU: the same images as on the CPU, no host reads, capture and replay, compiled code within one level."""

import pytest
import torch

from evenly.data.augment import Augment, generated_keys, keyed, normalise

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor's own
]
RECIPES = ["basic", "resized", "resized:scale=0.7-1", "trivial", "basic+trivial"]


def some_images(count=512):
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def no_host_reads():
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("recipe", RECIPES)
def test_images_are_those_of_the_cpu(recipe):
    augment, images, index = Augment(recipe), some_images(), torch.arange(512)
    assert torch.equal(keyed(1, 2, index.cuda()).cpu(), keyed(1, 2, index))
    assert torch.equal(augment(images.cuda(), index.cuda(), 2, 1).cpu(), augment(images, index, 2, 1))


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_is_read_back(recipe, no_host_reads):
    images, index = some_images().pin_memory().cuda(non_blocking=True), torch.arange(512, device="cuda")
    normalise(Augment(recipe)(images, index, 2, 1), (0.5,) * 3, (0.2,) * 3, torch.bfloat16)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_captured_graph_draws_anew_for_every_epoch_and_index(recipe):
    augment, images = Augment(recipe), some_images().cuda()
    index, epoch = torch.arange(128, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            augment(images[index], index, epoch, 5)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        done = augment(images[index], index, epoch, 5)
        generated = augment.with_keys(images[index], generated_keys(128, "cuda"))
    previous = None
    for number in (0, 1, 7):
        epoch.fill_(number)
        index.copy_(torch.arange(128) + 3 * number)
        graph.replay()
        assert torch.equal(done, augment(images[index], index, number, 5))
        assert previous is None or not torch.equal(generated, previous)
        previous = generated.clone()


@pytest.mark.parametrize("recipe", RECIPES)
def test_compiled_code_stays_within_one_level(recipe):
    augment, images, index = Augment(recipe), some_images().cuda(), torch.arange(512, device="cuda")
    keys = keyed(1, 0, index)
    compiled = torch.compile(augment.with_keys, fullgraph=True)
    difference = (compiled(images, keys).int() - augment.with_keys(images, keys).int()).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).double().mean()) < 1e-3
