"""The header walker: sound files are read exactly, everything else ends in one clear line."""

# Tables of cases are easier to read with one case a line.
# ruff: noqa: E501

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slmguard.core.errors import UserError
from slmguard.plan.byte_cursor import ByteCursor, MalformedError
from slmguard.plan.gguf_header import GgufHeader, SkippedArray, SkippedString, read_header
from slmguard.plan.model_file import read_model
from tests.plan.gguf_writer import GgufWriter, TensorSpec, Writable
from tests.plan.model_makers import geometry_header, transformer, vocabulary

SAMPLE: dict[str, Writable] = {
    "general.architecture": "llama",
    "general.name": "a name with \x1b[31mcolour",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "llama.flag": True,
    "llama.negative": -7,
    "llama.per_layer": [1, 0, 1],
    "tokenizer.ggml.tokens": ["<s>", "a", ""],
    "tokenizer.chat_template": "x" * 5000,
}


def sample(**changes: object) -> GgufWriter:
    tensors = [TensorSpec("token_embd.weight", (64, 3), "q8_0"), TensorSpec("output_norm.weight", (64,))]
    return GgufWriter({**SAMPLE}, tensors, **changes)  # type: ignore[arg-type]


def read_bytes(raw: bytes, folder: Path) -> GgufHeader:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    return read_header(path)


def sample_bytes(folder: Path, **changes: object) -> bytes:
    return sample(**changes).write(folder / "sample.gguf").read_bytes()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("alignment", [32, 1, 4096])
def test_both_versions_and_byte_orders_are_read(version: int, order: str, alignment: int, tmp_path: Path) -> None:
    writer = sample(version=version, order=order, alignment=alignment)
    writer.metadata["general.alignment"] = alignment
    header = read_header(writer.write(tmp_path / "m.gguf"))
    assert header.version == version
    assert header.byte_order == ("little" if order == "<" else "big")
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.negative"] == -7
    assert header.metadata["llama.flag"] is True
    assert header.metadata["llama.per_layer"] == (1, 0, 1)
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray(3)
    assert header.metadata["tokenizer.chat_template"] == SkippedString(5000)
    assert [tensor.shape for tensor in header.tensors] == [(64, 3), (64,)]
    assert header.tensor_bytes == 3 * 68 + 256


def test_metadata_without_any_tensor_is_a_sound_header(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(GgufWriter({**SAMPLE}).header())
    assert read_header(tmp_path / "m.gguf").tensors == ()


def test_every_strict_prefix_of_a_file_is_refused_except_the_header_alone(tmp_path: Path) -> None:
    raw = sample_bytes(tmp_path)
    header_length = len(sample().header())
    for end in range(len(raw)):
        if header_length <= end <= -(-header_length // 32) * 32:
            assert not read_bytes(raw[:end], tmp_path).has_data
        else:
            with pytest.raises(UserError, match="is no sound GGUF file"):
                read_bytes(raw[:end], tmp_path)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "needs 4 bytes"),
        (b"PK\x03\x04 a zip", "begins with b'PK"),
        (b"<html>404 Not Found</html>", "begins with b'<htm'"),
        (b"ggml" + bytes(64), "before August 2023"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), "version 0"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "metadata keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "claims"),
        # The file of 49 bytes that the gguf package never finishes: an array of 2^63 values.
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 0, 2**63), "needs 9223372036854775808"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**40), "strings in"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "arrays of arrays"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "unknown value type 99"),
    ],
)  # fmt: skip
def test_broken_files_end_in_one_line_that_says_what_is_wrong(raw: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sound GGUF") as caught:
        read_bytes(raw, tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (TensorSpec("t", (0, 4)), "impossible shape"),
        (TensorSpec("t", (2**40, 2**40)), "impossible shape"),
        (TensorSpec("t", (1, 1, 1, 1, 1)), "5 dimensions"),
        (TensorSpec("t", ()), "0 dimensions"),
    ],
)
def test_impossible_tensors_are_refused(tensor: TensorSpec, said: str, tmp_path: Path) -> None:
    writer = GgufWriter({"general.architecture": "llama"}, [tensor])
    (tmp_path / "m.gguf").write_bytes(writer.header())
    with pytest.raises(UserError, match="sound GGUF") as caught:
        read_header(tmp_path / "m.gguf")
    assert said in str(caught.value)


def test_twice_the_same_key_or_tensor_is_refused(tmp_path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 1)
    with pytest.raises(UserError, match="k appears twice"):
        read_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + key * 2, tmp_path)
    twice = GgufWriter({}, [TensorSpec("t", (8,)), TensorSpec("t", (8,))])
    with pytest.raises(UserError, match="tensor t appears twice"):
        read_header(twice.write(tmp_path / "m.gguf"))


def test_a_hostile_name_reaches_the_terminal_escaped(tmp_path: Path) -> None:
    writer = GgufWriter({}, [TensorSpec("\x1b[2Jt", (0, 1))])
    with pytest.raises(UserError, match="sound GGUF") as caught:
        read_bytes(writer.header(), tmp_path)
    assert "\x1b" not in str(caught.value)
    assert "\\x1b[2Jt" in str(caught.value)


def test_an_unknown_tensor_type_takes_the_room_up_to_the_next_tensor(tmp_path: Path) -> None:
    raw = bytearray(sample_bytes(tmp_path))
    at = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    raw[at : at + 4] = struct.pack("<I", 77)
    header = read_bytes(bytes(raw), tmp_path)
    assert header.unknown_types == {77}
    assert header.tensors[0].size_bytes == header.tensors[1].offset_bytes


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo"])
def test_what_is_no_regular_file_is_refused_without_opening_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(UserError, match=r"does not exist|is a directory|no regular file"):
        read_header(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_header_is_read_or_refused_but_never_trusted(data: st.DataObject, tmp_path: Path) -> None:
    order = data.draw(st.sampled_from("<>"))
    raw = bytearray(sample_bytes(tmp_path, order=order))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        width = data.draw(st.sampled_from([1, 4, 8]))
        value = data.draw(
            st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
        )
        raw[at : at + width] = struct.pack(order + "Q", value)[:width]
    cut = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    outcome = read_or_refuse(bytes(raw[:cut]), tmp_path)
    if isinstance(outcome, UserError):
        assert "\n" not in str(outcome)
    else:
        assert not outcome.has_data or outcome.data_start + outcome.tensor_bytes <= outcome.file_bytes


def read_or_refuse(raw: bytes, folder: Path) -> GgufHeader | UserError:
    try:
        return read_bytes(raw, folder)
    except UserError as error:
        return error


@given(st.binary(max_size=300))
def test_a_cursor_never_reads_past_the_end(raw: bytes) -> None:
    cursor = ByteCursor(io.BytesIO(raw), len(raw))
    with pytest.raises(MalformedError):
        cursor.take(len(raw) + 1, "more")
    assert cursor.take(len(raw), "all") == raw
    assert cursor.remaining_bytes == 0


def test_a_vocabulary_of_262144_tokens_in_a_file_of_4_gb_takes_little_time_and_memory(tmp_path: Path) -> None:
    writer = geometry_header("gemma3", layers=26, kv_heads=1, head=256, heads=4, attention__sliding_window=512)
    writer.metadata.update(vocabulary(262_144))
    writer.metadata["tokenizer.ggml.merges"] = [f"a{number} b{number}" for number in range(300_000)]
    writer.tensors = [TensorSpec("token_embd.weight", (4096, 1_000_000), "q8_0")]
    path = writer.write(tmp_path / "large.gguf")
    assert path.stat().st_size > 4 * 2**30
    code = (
        "import resource, sys, pathlib; from slmguard.plan.model_file import read_model; "
        "model = read_model(pathlib.Path(sys.argv[1])); "
        "use = resource.getrusage(resource.RUSAGE_SELF); "
        "status = pathlib.Path('/proc/self/status').read_text(); "
        "print(model.vocabulary_size, use.ru_utime + use.ru_stime, status.split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
    tokens, cpu_s, peak_kb = done.stdout.split()
    assert int(tokens) == 262_144
    assert int(peak_kb) <= 20 * 1024
    # CPU time, not wall time, and ten times what it takes: an accidental quadratic walk is what this catches.
    assert float(cpu_s) < 5


def test_split_files_are_one_model_whichever_part_is_named(tmp_path: Path) -> None:
    whole = transformer("llama", layers=3, embedding=64, feed_forward=128, heads=4, kv_heads=2)
    paths = write_split(whole, tmp_path, 3)
    for path in paths:
        model = read_model(path)
        assert len(model.parts) == 3
        assert len(model.tensors) == len(whole.tensors)
        assert model.architecture == "llama"
        assert model.file_bytes == sum(part.stat().st_size for part in paths)


def write_split(whole: GgufWriter, folder: Path, count: int) -> list[Path]:
    paths = []
    share = -(-len(whole.tensors) // count)
    for number in range(count):
        metadata = dict(whole.metadata) if number == 0 else {}
        metadata |= {"split.no": number, "split.count": count, "split.tensors.count": len(whole.tensors)}
        part = GgufWriter(metadata, whole.tensors[number * share : (number + 1) * share])
        paths.append(part.write(folder / f"model-{number + 1:05d}-of-{count:05d}.gguf"))
    return paths


def test_a_missing_repeated_or_foreign_part_is_named(tmp_path: Path) -> None:
    whole = transformer("llama", layers=3, embedding=64, feed_forward=128, heads=4, kv_heads=2)
    paths = write_split(whole, tmp_path, 3)
    third = paths[2].read_bytes()
    paths[2].unlink()
    with pytest.raises(UserError, match=r"00003-of-00003\.gguf does not exist"):
        read_model(paths[0])
    paths[2].symlink_to(paths[1])
    with pytest.raises(UserError, match="same file as another part"):
        read_model(paths[0])
    paths[2].unlink()
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(UserError, match="does not say that it is part 3 of 3"):
        read_model(paths[0])
    paths[2].write_bytes(third)
    paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(UserError, match="rename the parts"):
        read_model(tmp_path / "renamed.gguf")
