"""The whole: pure in (seed, epoch, index), the same in any batch, nothing read from the device."""

import functools
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evenly.data.augment import (
    Augment,
    flip,
    generated_keys,
    keyed,
    normalise,
    pad_and_crop,
    random_resized_crop,
    trivial_augment,
)
from evenly.data.augment.keys import split

small = functools.partial(random_resized_crop, size=12)
RECIPES = ["none", "basic", "resized", "resized:scale=0.7-1", "trivial", "basic+trivial", ["basic", small, "trivial"]]


def some_images(count=60, channels=3, height=16, width=18):
    draw = np.random.default_rng(0)
    return torch.from_numpy(draw.integers(0, 256, (count, channels, height, width), dtype=np.uint8))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe if isinstance(recipe, str) else "list")
@pytest.mark.parametrize("channels", [1, 3])
def test_an_example_is_the_same_in_any_batch(recipe, channels):
    augment, images = Augment(recipe), some_images(channels=channels)
    index = torch.arange(60) * 7 + 3
    whole = augment(images, index, 4, 9)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(images[order], index[order], 4, 9), whole[order])
    for size in (1, 7, 32):
        parts = [augment(i, k, 4, 9) for i, k in zip(images.split(size), index.split(size), strict=True)]
        assert torch.equal(torch.cat(parts), whole)
    twice = augment(images.repeat(2, 1, 1, 1), index.repeat(2), 4, 9)
    assert torch.equal(twice, torch.cat([whole, whole]))
    assert torch.equal(augment(images, index, torch.tensor(4), torch.full((60,), 9)), whole)
    assert torch.equal(augment(images.contiguous(memory_format=torch.channels_last), index, 4, 9), whole)


@pytest.mark.parametrize("recipe", RECIPES[1:], ids=lambda recipe: recipe if isinstance(recipe, str) else "list")
def test_seed_epoch_and_index_each_change_what_is_drawn(recipe):
    augment = Augment(recipe)
    images = some_images(1).expand(60, -1, -1, -1)
    index = torch.arange(60)
    whole = augment(images, index, 4, 9)
    for other in (augment(images, index, 5, 9), augment(images, index, 4, 10), augment(images, index + 60, 4, 9)):
        changed = (other != whole).flatten(1).any(1).double().mean()
        assert float(changed) > 0.5


def test_the_input_the_random_state_and_the_threads_are_left_alone():
    images, index = some_images(), torch.arange(60)
    before, state, threads = images.clone(), torch.get_rng_state(), torch.get_num_threads()
    done = Augment("basic+trivial")(images, index, 0, 0)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    try:
        torch.set_num_threads(2)
        assert torch.equal(Augment("basic+trivial")(images, index, 0, 0), done)
    finally:
        torch.set_num_threads(threads)


def test_recipes_are_their_steps_in_order_each_with_keys_of_its_own():
    images, keys = some_images(), keyed(1, 2, torch.arange(60))
    basic = flip(pad_and_crop(images, split(keys, 0), 4), split(keys, 1), 0.5)
    assert torch.equal(Augment("none")(images, torch.arange(60), 2, 1), images)
    assert torch.equal(Augment("basic")(images, torch.arange(60), 2, 1), basic)
    with_trivial = trivial_augment(basic, split(keys, 2))
    for recipe in ("basic+trivial", ["basic", "trivial"], [pad_and_crop, flip, trivial_augment]):
        assert torch.equal(Augment(recipe)(images, torch.arange(60), 2, 1), with_trivial)
    resized = flip(random_resized_crop(images, split(keys, 0)), split(keys, 1))
    assert torch.equal(Augment("resized")(images, torch.arange(60), 2, 1), resized)
    assert torch.equal(Augment().with_keys(images, keys), basic)


def test_options_are_those_of_the_steps_and_are_checked_at_once(refused):
    images, keys = some_images(), keyed(1, 2, torch.arange(60))
    own = flip(random_resized_crop(images, split(keys, 0), scale=(0.7, 1.0), ratio=(1.0, 1.5)), split(keys, 1), 0.1)
    assert torch.equal(Augment("resized:scale=0.7-1:ratio=1-1.5:p=0.1").with_keys(images, keys), own)
    own = trivial_augment(flip(pad_and_crop(images, split(keys, 0), 2), split(keys, 1)), split(keys, 2))
    assert torch.equal(Augment("basic:padding=2+trivial").with_keys(images, keys), own)
    for recipe, message in (
        ("resized:scales=1-1", "no option of resized is called 'scales'; did you mean 'scale'"),
        ("trivial:p=1", "no option of trivial is called 'p'; there are none"),
        ("resised:scale=1-1", "no augmentation is called 'resised'; did you mean 'resized'"),
        ("resized:scale=0.5", "scale of resized must be two numbers, as 0.7-1, got '0.5'"),
        ("resized:scale=a-b", "scale of resized must be two numbers, as 0.7-1, got 'a-b'"),
        ("basic:p", "p of basic must be a number, got ''"),
        ("resized:scale=0.5-2", r"scale must be a range of areas, 0 < smallest <= largest <= 1, got \(0.5, 2.0\)"),
        ("basic:padding=0.5", "padding must be a whole number of pixels, at least 0, got 0.5"),
    ):
        refused(message, Augment, recipe)


def test_crop_and_flip_draw_independently():
    """Read off one image: the flip shows in which neighbour is larger, the shift in the level itself."""
    ramp = torch.arange(1, 101, dtype=torch.uint8).expand(20_000, 1, 1, 100)
    done = Augment("basic")(ramp, torch.arange(20_000), 0, 0)[:, 0, 0, 40:60].long()
    done = done[(done > 0).all(1)]  # where the row was not moved out of sight
    flipped = done[:, 0] > done[:, 1]
    shift = done[:, 0] - torch.where(flipped, 60, 41)
    assert sorted(shift.unique().tolist()) == list(range(-4, 5))
    table = torch.stack([torch.bincount(shift[flipped == which] + 4, minlength=9) for which in (False, True)])
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe if isinstance(recipe, str) else "list")
def test_empty_batches_and_single_pixels(recipe):
    augment = Augment(recipe)
    empty = augment(some_images(0), torch.arange(0), 0, 0)
    assert empty.shape[:2] == (0, 3)
    assert empty.dtype == torch.uint8
    pixels = augment(some_images(50, 3, 1, 1), torch.arange(50), 0, 0)
    assert pixels.shape[:2] == (50, 3)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe if isinstance(recipe, str) else "list")
def test_it_survives_a_pickle(recipe):
    images, index = some_images(), torch.arange(60)
    augment = Augment(recipe)
    again = pickle.loads(pickle.dumps(augment))
    assert torch.equal(again(images, index, 1, 2), augment(images, index, 1, 2))
    assert repr(again) == repr(augment)


def test_it_says_what_it_does():
    assert repr(Augment()) == "Augment('basic')"
    assert repr(Augment("basic+trivial")) == "Augment('basic+trivial')"
    assert repr(Augment(["basic", small, flip])) == "Augment(['basic', random_resized_crop(size=12), flip])"
    assert repr(Augment(flip)) == "Augment([flip])"


class OnOneDevice(TorchDispatchMode):
    """Refuses every tensor that is not on the meta device; values there cannot be read, nor shapes depend on them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, Tensor) or leaf.device.type == "meta", func
        return result


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe if isinstance(recipe, str) else "list")
def test_nothing_goes_between_host_and_device(recipe, monkeypatch):
    images = torch.empty(8, 3, 16, 18, dtype=torch.uint8, device="meta")
    index, epoch = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((8,), ()))

    def copies_from_the_host(*args, **options):
        raise AssertionError(f"a tensor was made of {args}")

    for name in ("tensor", "as_tensor", "from_numpy", "asarray"):  # below what a dispatch mode sees
        monkeypatch.setattr(torch, name, copies_from_the_host)
    with OnOneDevice():
        done = Augment(recipe)(images, index, epoch, 3)
        Augment(recipe).with_keys(images, generated_keys(8, "meta"))
        normalise(done, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), torch.bfloat16)
    assert done.device.type == "meta"


def test_the_guard_of_the_last_test_sees_a_copy_and_a_read():
    with OnOneDevice(), pytest.raises(AssertionError):
        torch.tensor([1.0, 2.0], device="cpu").to("meta")
    with pytest.raises((RuntimeError, NotImplementedError)), OnOneDevice():
        torch.empty((), device="meta").item()


def test_it_compiles_into_one_graph():
    images, index = some_images(6), torch.arange(6)
    augment = Augment("basic+trivial")
    compiled = torch.compile(augment.with_keys, backend="eager", fullgraph=True)
    keys = keyed(1, 0, index)
    assert torch.equal(compiled(images, keys), augment(images, index, 0, 1))


def test_normalise_equals_the_formula_in_float64():
    images, mean, std = some_images(), (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    expected = (images.numpy() / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    done = normalise(images, mean, std)
    assert done.dtype == torch.float32
    np.testing.assert_allclose(done.numpy(), expected, atol=2e-6)
    assert torch.equal(normalise(images, torch.tensor(mean), torch.tensor(std)), done)
    assert torch.equal(normalise(images, mean, std, torch.bfloat16), done.bfloat16())
    assert normalise(images[:0], mean, std).shape == (0, 3, 16, 18)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (0.2, 0.2, 0.2), "mean has 1 values for 3 channels; give one for each"),
        ((0.5,) * 3, torch.ones(2), "std has 2 values for 3 channels; give one for each"),
        ((0.5, 0.5, 125.3), (0.2,) * 3, "mean must be from 0 to 1, got 125.3; divide grey levels by 255"),
        ((0.5,) * 3, (0.2, 0.0, 0.2), "std must be above 0 and at most 1, got 0.0; .* use 1 if constant"),
        ((0.5,) * 3, (0.2, 63.0, 0.2), "std must be above 0 and at most 1, got 63.0; divide grey levels by 255"),
    ],
)
def test_normalise_refuses(mean, std, message, refused):
    refused(message, normalise, some_images(1), mean, std)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 3, 4, 4), np.uint8), r"images are a ndarray; give a uint8 tensor \(N, C, H, W\)"),
        (torch.zeros(2, 3, 4, 4), r"images are float32 of shape \(2, 3, 4, 4\); give uint8 .*, and normalise after"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), r"images are uint8 of shape \(2, 4, 4\); give uint8 \(N, C, H, W\)"),
        (torch.zeros(2, 3, 0, 4, dtype=torch.uint8), r"images are of shape \(2, 3, 0, 4\), without a pixel"),
        (torch.zeros(5, 3, 4, 4, dtype=torch.uint8), r"got 2 indices for 5 images; give one for each"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(images, message, refused):
    refused(message, lambda: Augment("basic")(images, torch.arange(2), 0, 0))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("basics", "no augmentation is called 'basics'; did you mean 'basic'?"),
        ("basic+cutout", "no augmentation is called 'cutout'; there are: basic, none, resized, trivial"),
        ("", "no augmentation is called ''; there are: basic, none, resized, trivial"),
        (["basic", 3], "an augmentation must be a name or a function of .images, keys., got a int"),
        (None, "an augmentation must be a name or a function of .images, keys., got a NoneType"),
    ],
)
def test_unknown_recipes_are_refused(recipe, message, refused):
    refused(message, Augment, recipe)


def test_a_step_that_leaves_uint8_is_named(refused):
    def blur(images, keys):
        return images.float()

    refused("blur returned float32", lambda: Augment([blur])(some_images(2), torch.arange(2), 0, 0))
