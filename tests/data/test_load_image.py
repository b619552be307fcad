"""Every kind of image becomes the right upright RGB, and every bad one a message that names it."""

import io
import os
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps

from kalmanclip.data.images import IMAGE_SUFFIXES, MAX_PIXELS, load_image
from kalmanclip.errors import ConfigError, DataError, ImageError

as_root = hasattr(os, "geteuid") and os.geteuid() == 0

# 2 x 3, no two pixels alike, so that every turn and flip shows
CORNERS = np.array(
    [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[255, 255, 0], [0, 255, 255], [10, 20, 30]]], dtype=np.uint8
)


def noise(height=48, width=64):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height, width):
    """A picture with soft shapes and some texture, as photographs have."""
    y, x = np.mgrid[:height, :width] / min(height, width)
    waves = [np.sin(9 * x + 4 * y), np.cos(7 * y - 3 * x), np.sin(60 * x) * np.sin(50 * y)]
    return (127.5 + 80 * np.stack(waves, axis=2)).clip(0, 255).astype(np.uint8)


def saved(path, pixels, **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def pixels_of(image):
    assert image.mode == "RGB"
    return np.asarray(image)


# ---- files that are fine


@pytest.mark.parametrize("suffix", [".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".PNG", ".apng", ".jp2"])
def test_lossless_formats_are_exact(tmp_path, suffix):
    path = saved(tmp_path / f"x{suffix}", noise(), **({"lossless": True} if suffix == ".webp" else {}))
    loaded = load_image(path)
    np.testing.assert_array_equal(pixels_of(loaded), noise())
    loaded.load()  # usable although the file is closed
    assert loaded.resize((3, 2)).size == (3, 2)
    np.testing.assert_array_equal(pixels_of(load_image(str(path))), noise())


def test_jpeg_is_the_exact_decode_and_the_suffix_does_not_matter(tmp_path):
    path = saved(tmp_path / "really_a_jpeg.png", smooth(60, 90), format="JPEG")
    expected = np.asarray(Image.open(path).convert("RGB"))
    np.testing.assert_array_equal(pixels_of(load_image(path)), expected)


def test_suffixes_are_lower_case_with_a_dot():
    assert {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"} <= set(IMAGE_SUFFIXES)
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in IMAGE_SUFFIXES)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".webp"])
def test_one_pixel(tmp_path, suffix):
    image = load_image(saved(tmp_path / f"x{suffix}", Image.new("RGB", (1, 1), (200, 200, 200))))
    assert image.size == (1, 1)
    assert abs(pixels_of(image).astype(int) - 200).max() <= 2


@pytest.mark.parametrize(("mode", "value", "expected"), [("L", 77, 77), ("1", 1, 255)])
def test_grey_and_bilevel(tmp_path, mode, value, expected):
    path = saved(tmp_path / "x.png", Image.new(mode, (4, 3), value))
    np.testing.assert_array_equal(pixels_of(load_image(path)), np.full((3, 4, 3), expected))


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path, suffix):
    values = np.array([[0, 128, 129, 257], [32768, 65278, 65406, 65535]], dtype=np.uint16)
    path = saved(tmp_path / f"x{suffix}", Image.fromarray(values))
    expected = np.round(values / 65535 * 255)
    for channel in range(3):
        np.testing.assert_array_equal(pixels_of(load_image(path))[:, :, channel], expected)


def test_16_bit_grey_with_a_transparent_value(tmp_path):
    path = saved(tmp_path / "x.png", Image.fromarray(np.array([[0, 1000]], dtype=np.uint16)), transparency=0)
    np.testing.assert_array_equal(pixels_of(load_image(path))[0, :, 0], [255, round(1000 / 257)])


def test_float_and_wide_integer_tiff(tmp_path):
    fine = saved(tmp_path / "fine.tif", Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)))
    np.testing.assert_array_equal(pixels_of(load_image(fine))[0, :, 0], [0, 128, 255])
    wide = saved(tmp_path / "wide.tif", Image.fromarray(np.array([[0, 70_000]], dtype=np.int32)))
    with pytest.raises(ImageError, match=r"wide\.tif.*0 to 70000.*8 bits"):
        load_image(wide)


def test_palette(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    np.testing.assert_array_equal(
        pixels_of(load_image(saved(tmp_path / "x.png", image)))[0], [[10, 20, 30], [200, 100, 50]]
    )


@pytest.mark.parametrize("suffix", [".png", ".gif"])
def test_palette_with_transparency_is_put_on_white(tmp_path, suffix):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    path = saved(tmp_path / f"x{suffix}", image, transparency=0)
    np.testing.assert_array_equal(pixels_of(load_image(path))[0], [[255, 255, 255], [200, 100, 50]])


def test_palette_with_partial_transparency(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 0), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_image(saved(tmp_path / "x.png", image, transparency=bytes([128, 255])))
    np.testing.assert_allclose(pixels_of(loaded)[0], [[127, 127, 127], [200, 100, 50]], atol=1)


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif"])
def test_alpha_is_put_on_white(tmp_path, suffix):
    pixels = np.array([[[0, 0, 0, 0], [0, 0, 0, 255], [100, 200, 0, 102]]], dtype=np.uint8)
    options = {"lossless": True, "exact": True} if suffix == ".webp" else {}
    loaded = load_image(saved(tmp_path / f"x{suffix}", pixels, **options))
    expected = [[255, 255, 255], [0, 0, 0], [100 * 0.4 + 153, 200 * 0.4 + 153, 153]]
    np.testing.assert_allclose(pixels_of(loaded)[0], expected, atol=1)


@pytest.mark.parametrize("mode", ["LA", "La", "PA", "RGBa", "RGBA"])
def test_every_mode_with_alpha(mode):
    clear = Image.new("RGBA", (2, 2), (9, 9, 9, 0))
    image = clear.convert("LA").convert("La") if mode == "La" else clear.convert(mode)
    np.testing.assert_array_equal(pixels_of(load_image(image)), np.full((2, 2, 3), 255))


def test_transparent_colour_of_an_rgb_png(tmp_path):
    path = saved(tmp_path / "x.png", CORNERS, transparency=(255, 0, 0))
    expected = CORNERS.copy()
    expected[0, 0] = 255
    np.testing.assert_array_equal(pixels_of(load_image(path)), expected)


def test_gif_converted_by_its_owner(tmp_path):
    """Leftover transparency data of another mode must not confuse."""
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    path = saved(tmp_path / "x.gif", image, transparency=1)
    for mode in ("RGB", "L", "RGBA"):
        assert load_image(Image.open(path).convert(mode)).size == (2, 1)


@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
def test_cmyk(tmp_path, suffix):
    """Cyan ink is cyan light: not inverted, as a naive reading of Adobe's JPEGs would have it."""
    path = saved(tmp_path / f"x{suffix}", Image.new("CMYK", (8, 8), (255, 0, 0, 0)))
    np.testing.assert_allclose(pixels_of(load_image(path))[4, 4], [0, 255, 255], atol=3)


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "LAB"])
def test_other_colour_spaces(mode):
    image = Image.new("RGB", (2, 2), (200, 100, 50)).convert(mode)
    np.testing.assert_allclose(pixels_of(load_image(image))[0, 0], [200, 100, 50], atol=4)


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png", ".tif"])
def test_animation_gives_its_first_frame(tmp_path, suffix):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    path = tmp_path / f"x{suffix}"
    options = {"lossless": True} if suffix == ".webp" else {}
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(pixels_of(load_image(path))[0, 0], [255, 0, 0])


# ---- EXIF


def oriented(path, orientation, **options):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return saved(path, Image.fromarray(CORNERS), exif=exif, **options)


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: np.rot90(a, 2).transpose(1, 0, 2)),
        (8, lambda a: np.rot90(a)),
        (99, lambda a: a),
    ],
)
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_exif_orientation(tmp_path, orientation, turn, suffix):
    path = oriented(tmp_path / f"x{suffix}", orientation)
    np.testing.assert_array_equal(pixels_of(load_image(path)), turn(CORNERS))


def test_exif_orientation_of_jpeg_and_of_pil_images(tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    path = saved(tmp_path / "x.jpg", smooth(30, 50), exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    assert expected.shape == (50, 30, 3)
    np.testing.assert_array_equal(pixels_of(load_image(path)), expected)
    opened = Image.open(path)
    np.testing.assert_array_equal(pixels_of(load_image(opened)), expected)
    assert opened.size == (50, 30)  # not changed
    np.testing.assert_array_equal(pixels_of(load_image(ImageOps.exif_transpose(opened))), expected)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0"])
def test_damaged_exif_does_not_cost_the_picture(tmp_path, exif):
    path = saved(tmp_path / "x.jpg", smooth(30, 50), exif=exif)
    assert load_image(path).size == (50, 30)


# ---- PIL images and arrays


def test_pil_image_is_neither_changed_nor_shared():
    original = Image.fromarray(noise())
    loaded = load_image(original)
    loaded.putpixel((0, 0), (1, 2, 3))
    np.testing.assert_array_equal(np.asarray(original), noise())


def test_pil_animation_stays_where_its_owner_left_it(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "x.gif") as opened:
        opened.seek(1)
        np.testing.assert_array_equal(pixels_of(load_image(opened))[0, 0], [0, 0, 255])
        assert opened.tell() == 1


def test_one_unloaded_pil_image_in_many_threads(tmp_path):
    path = saved(tmp_path / "x.png", noise(400, 400))
    for _ in range(5):
        lazy, gate = Image.open(path), threading.Barrier(8)

        def load(_, lazy=lazy, gate=gate):
            gate.wait()
            return np.asarray(load_image(lazy))

        with ThreadPoolExecutor(8) as pool:
            for pixels in pool.map(load, range(8)):
                np.testing.assert_array_equal(pixels, noise(400, 400))


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_numpy_arrays(dtype, channels):
    whole = noise() if channels == 3 else noise()[:, :, :1] if channels == 1 else noise()[:, :, 0]
    array = whole if dtype is np.uint8 else (whole / 255).astype(dtype)
    expected = np.broadcast_to(whole[:, :, None] if channels is None else whole, (48, 64, 3))
    np.testing.assert_array_equal(pixels_of(load_image(array)), expected)


def test_array_with_alpha_views_and_order():
    rgba = np.dstack([noise(), np.zeros((48, 64), np.uint8)])
    np.testing.assert_array_equal(pixels_of(load_image(rgba)), np.full((48, 64, 3), 255))
    np.testing.assert_array_equal(pixels_of(load_image(noise()[::-1, ::2])), noise()[::-1, ::2])
    np.testing.assert_array_equal(pixels_of(load_image(np.asfortranarray(noise()))), noise())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_give_back_all_the_bytes_they_came_from(dtype):
    values = np.arange(256)[None, :]
    loaded = load_image((values / 255).astype(dtype))
    np.testing.assert_array_equal(pixels_of(loaded)[:, :, 0], values)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels_first", [True, False])
def test_tensors(dtype, channels_first):
    tensor = torch.from_numpy(noise())
    tensor = tensor.movedim(2, 0) if channels_first else tensor
    tensor = tensor if dtype == torch.uint8 else tensor.float() / 255
    np.testing.assert_array_equal(pixels_of(load_image(tensor)), noise())


def test_tensors_of_other_kinds():
    np.testing.assert_array_equal(pixels_of(load_image(torch.from_numpy(noise()[:, :, 0])))[:, :, 1], noise()[:, :, 0])
    assert load_image(torch.zeros(1, 5, 7)).size == (7, 5)
    assert load_image(torch.zeros(3, 5, 3)).size == (3, 5)  # either way possible: channels first
    assert load_image(torch.full((2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)).size == (2, 2)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros((2, 2, 2, 3), np.uint8), r"shape \(2, 2, 2, 3\)"),
        (np.zeros((3, 20, 20), np.uint8), r"transpose\(1, 2, 0\)"),
        (np.zeros((5,), np.uint8), "shape"),
        (np.zeros((0, 5), np.uint8), "no pixels"),
        (np.zeros((2, 2), np.int64), r"int64.*uint8"),
        (np.full((2, 2), 255.0), "divide by 255"),
        (np.full((2, 2), -0.5), "0..1"),
        (np.full((2, 2), np.nan), "nan"),
        (torch.full((2, 2), float("inf")), "inf"),
        (Image.new("RGB", (0, 3)), "no pixels"),
        (b"bytes", "bytes"),
        (None, "NoneType"),
    ],
)
def test_arrays_and_things_that_are_no_image(array, problem):
    with pytest.raises(ImageError, match=problem):
        load_image(array)


# ---- files that are not fine


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp", ".gif", ".tif", ".ppm", ".jp2", ".avif"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.9])
def test_truncated(tmp_path, suffix, part):
    path = tmp_path / f"x{suffix}"
    try:
        saved(path, noise())
    except (OSError, KeyError, ValueError):
        pytest.skip("this Pillow does not write the format")
    whole = path.read_bytes()
    path.write_bytes(whole[: max(1, int(len(whole) * part))])
    with pytest.raises(ImageError, match=r"x\.\w+ (is damaged|is not an image).*remove it"):
        load_image(path)


@pytest.mark.parametrize("content", [b"just some text, renamed\n" * 10, b"P", b"\x89PNG", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_not_an_image(tmp_path, content):
    path = tmp_path / "holiday.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=r"holiday\.jpg is .*remove it"):
        load_image(path)


def test_text_is_called_not_an_image(tmp_path):
    (tmp_path / "x.jpg").write_text("hello")
    with pytest.raises(ImageError, match="is not an image that can be read"):
        load_image(tmp_path / "x.jpg")


@settings(deadline=None)
@given(
    position=st.integers(0, 10_000),
    value=st.integers(0, 255),
    suffix=st.sampled_from(["PNG", "JPEG", "GIF", "TIFF"]),
)
def test_a_flipped_byte_gives_an_image_or_an_image_error(tmp_path_factory, position, value, suffix):
    stream = io.BytesIO()
    Image.fromarray(smooth(24, 24)).save(stream, suffix)
    content = bytearray(stream.getvalue())
    content[position % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(content)
    message = f"{path} "
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = load_image(path, max_pixels=10_000_000)
        except ImageError as caught:
            message, image = str(caught), None
    assert image is None or image.mode == "RGB"
    assert message.startswith(f"{path} ")


def test_empty_missing_folder_broken_link_pipe_and_impossible_name(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "broken.png").symlink_to(tmp_path / "gone.png")
    os.mkfifo(tmp_path / "pipe.png")
    for name, problem in [
        ("empty.png", r"empty\.png is empty"),
        ("gone.png", r"gone\.png does not exist"),
        ("", "is a folder"),
        ("broken.png", r"broken\.png is a link to a file that is gone"),
        ("pipe.png", r"pipe\.png is not an ordinary file"),
        ("a\0b.png", "cannot be opened"),
        ("n" * 300 + ".png", "cannot be opened"),
    ]:
        with pytest.raises(ImageError, match=problem):
            load_image(tmp_path / name)


@pytest.mark.skipif(as_root, reason="root may read everything")
def test_no_permission_to_read(tmp_path):
    path = saved(tmp_path / "secret.png", noise())
    path.chmod(0)
    with pytest.raises(ImageError, match=r"secret\.png may not be read.*permissions"):
        load_image(path)


def test_refused_opening_is_explained(tmp_path, monkeypatch):
    """The same without depending on who runs the tests."""
    path = saved(tmp_path / "secret.png", noise())

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ImageError, match=r"secret\.png may not be read.*permissions"):
        load_image(path)


def test_image_errors_are_data_errors():
    assert issubclass(ImageError, DataError)


# ---- size


def png_header(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(20_000, 10_001), (2**31 - 1, 2**31 - 1)])
def test_bomb_is_refused_before_decoding(tmp_path, size):
    """Only the header exists: decoding it would be reported as damage, not as size."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(*size))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match=rf"bomb\.png has {size[0]} x {size[1]} pixels.*{MAX_PIXELS}"):
            load_image(path)


def test_exactly_the_limit_is_not_too_large(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(png_header(20_000, 10_000))
    with pytest.raises(ImageError, match="damaged"):  # got as far as decoding
        load_image(path)
    path = saved(tmp_path / "y.png", noise(10, 10))
    assert load_image(path, max_pixels=100).size == (10, 10)
    with pytest.raises(ImageError, match="limit of 99"):
        load_image(path, max_pixels=99)


def test_100_million_pixels_without_warning_or_lasting_change(tmp_path):
    path = tmp_path / "large.jpg"
    Image.new("L", (10_000, 10_000), 90).save(path, quality=50)
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = load_image(path)
        small = load_image(path, min_side=224)
    assert whole.size == (10_000, 10_000)
    assert whole.getpixel((9_999, 9_999)) == (90, 90, 90)
    assert small.size == (1250, 1250)
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((254, 1000), (254, 1000)),  # less than 4 times larger
        ((256, 300), (128, 150)),
        ((512, 1024), (128, 256)),
        ((1024, 1032), (128, 129)),
        ((1024, 1028), (256, 257)),  # 8 does not divide 1028
        ((1024, 1031), (1024, 1031)),
    ],
)
def test_draft_only_when_much_larger_than_needed(tmp_path, size, decoded):
    path = saved(tmp_path / "x.jpg", smooth(size[1], size[0]))
    assert load_image(path, min_side=64).size == decoded
    assert load_image(path).size == size


@pytest.mark.parametrize("size", [(1096, 1304), (1100, 1300), (1098, 1302), (1097, 1303)])
@pytest.mark.parametrize("side", [56, 112, 224])
def test_draft_makes_no_visible_difference_once_resized(tmp_path, size, side):
    """The odd sizes would differ by 5 to 24 grey levels if the decoder's rounding up were let through."""
    path = saved(tmp_path / "x.jpg", smooth(*size), quality=90)
    target = (round(size[1] * side / size[0]), side)
    exact, drafted = (
        np.asarray(load_image(path, min_side=needed).resize(target, Image.Resampling.BICUBIC)).astype(int)
        for needed in (None, side)
    )
    assert np.abs(drafted - exact).mean() < 0.5
    assert np.abs(drafted - exact).max() <= 3


def test_draft_leaves_other_formats_and_orientation_alone(tmp_path):
    exact = saved(tmp_path / "x.png", noise(400, 600))
    np.testing.assert_array_equal(pixels_of(load_image(exact, min_side=16)), noise(400, 600))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = saved(tmp_path / "x.jpg", smooth(400, 800), exif=exif)
    assert load_image(turned, min_side=50).size == (100, 200)


def test_min_side_must_make_sense(tmp_path):
    with pytest.raises(ConfigError, match="min_side"):
        load_image(saved(tmp_path / "x.jpg", noise()), min_side=0)


def test_sixteen_bit_and_boolean_arrays_are_scaled():
    wide = np.array([[0, 32896], [65535, 257]], dtype=np.uint16)
    assert np.asarray(load_image(wide))[..., 0].tolist() == [[0, 128], [255, 1]]
    assert np.asarray(load_image(np.array([[True, False]])))[..., 0].tolist() == [[255, 0]]
