"""The proposal: the worst case stays below 85 % of MemoryHigh, or it says that nothing fits."""

# Tables of cases are easier to read with one case a line.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slmguard.core.errors import UserError
from slmguard.plan.cpu import CPUS
from slmguard.plan.estimate import Models, estimate
from slmguard.plan.limits import Limits, host_ram_bytes, limits_for
from slmguard.plan.plan import read_models
from slmguard.plan.proposal import arithmetic, propose
from slmguard.plan.request import PlanRequest, cache_type
from slmguard.plan.settings import ServerSettings
from slmguard.plan.sizes import MIB, parse_size
from slmguard.plan.weights import repacked_bytes
from tests.plan import family_makers
from tests.plan.model_makers import transformer

CPU = CPUS["x86-avx2"]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Qwen2.5-1.5B's shape in Q4_0, with an output matrix of its own."""
    writer = transformer(
        "qwen2",
        layers=28,
        embedding=1536,
        feed_forward=8960,
        heads=12,
        kv_heads=2,
        vocab=151_936,
        weight_type="q4_0",
    )
    return read_models(writer.write(tmp_path_factory.mktemp("qwen") / "q.gguf"), None, None)


def limits(high: str) -> Limits:
    return limits_for(None, parse_size(high))


def test_the_repacked_copy_is_counted_beside_the_mapped_file(qwen: Models) -> None:
    found = estimate(qwen, ServerSettings(context=4096), CPU)
    mapped, copied = found.bytes_of("weights_mapped"), found.bytes_of("weights_repacked")
    assert mapped == qwen.file.file_bytes
    # All but the norms and biases: the token table too, since it serves as the output matrix.
    assert copied == sum(t.size_bytes for t in qwen.file.tensors if len(t.shape) == 2)
    assert estimate(qwen, ServerSettings(context=4096, repack=False), CPU).bytes_of("weights_repacked") == 0
    read = estimate(qwen, ServerSettings(context=4096, load_mode="none"), CPU)
    table = next(t.size_bytes for t in qwen.file.tensors if t.name == "token_embd.weight")
    assert read.bytes_of("weights_mapped") == qwen.file.parts[0].tensor_bytes - copied + table


def test_what_is_repacked_depends_on_the_cpu(tmp_path: Path) -> None:
    writer = transformer("llama", layers=2, embedding=256, feed_forward=512, heads=4, kv_heads=4, tied=False)
    model = read_models(writer.write(tmp_path / "q8.gguf"), None, None).file
    matrices = sum(t.size_bytes for t in model.tensors if len(t.shape) == 2 and t.name != "token_embd.weight")
    assert repacked_bytes(model, CPUS["x86-avx2"]) == 0
    assert repacked_bytes(model, CPUS["arm-dotprod"]) == matrices
    assert repacked_bytes(model, CPUS["none"]) == 0


def test_experts_are_repacked_and_routers_are_not(tmp_path: Path) -> None:
    model = read_models(family_makers.qwen3moe().write(tmp_path / "moe.gguf"), None, None).file
    # As the engine prints it: CPU_REPACK model buffer size = 22.50 MiB.
    assert repacked_bytes(model, CPU) == 22.5 * MIB


def test_the_components_have_their_names_and_add_up(qwen: Models) -> None:
    found = estimate(qwen, ServerSettings(context=4096, cache_ram_bytes=256 * MIB), CPU)
    assert [part.name for part in found.components] == [
        "weights_mapped", "weights_repacked", "kv", "compute", "prompt_cache", "checkpoints", "projector", "draft", "overhead",
    ]  # fmt: skip
    assert found.bytes_of("kv") == 112 * MIB
    assert found.bytes_of("prompt_cache") == 256 * MIB
    assert found.total_bytes == sum(part.bytes for part in found.components)
    assert [part.name for part in found.components if part.reclaimable] == ["weights_mapped"]
    locked = estimate(qwen, ServerSettings(context=4096, load_mode="mlock"), CPU)
    assert not any(part.reclaimable for part in locked.components)


def test_a_draft_model_brings_its_own_weights_and_cache(qwen: Models, tmp_path: Path) -> None:
    writer = transformer("qwen2", layers=4, embedding=256, feed_forward=512, heads=4, kv_heads=2)
    writer.write(tmp_path / "draft.gguf")
    both = read_models(qwen.file.path, None, tmp_path / "draft.gguf")
    found = estimate(both, ServerSettings(context=4096), CPU)
    assert found.bytes_of("draft") > (tmp_path / "draft.gguf").stat().st_size + 4 * 2 * 128 * 2 * 4096


def test_with_room_nothing_is_given_up(qwen: Models) -> None:
    found = propose(qwen, PlanRequest(), limits("6G"), CPU)
    assert found.fits
    assert found.savings == ()
    assert found.chosen.settings.context == 8192
    assert found.largest_context == 32768
    assert found.chosen.settings.repack


def test_on_two_gigabytes_the_second_copy_of_the_weights_goes_before_the_context(qwen: Models) -> None:
    found = propose(qwen, PlanRequest(), limits("1700M"), CPU)
    assert found.fits
    assert found.chosen.settings.load_mode == "none"
    assert found.chosen.settings.context >= 4096
    assert found.chosen.settings.cache_type_k.name == "f16"


def test_what_was_asked_for_is_never_changed(qwen: Models) -> None:
    request = PlanRequest(context=4096, parallel=2, cache_type_k=cache_type("f16"), cache_type_v=cache_type("f16"), load_mode="mmap", repack=True)  # fmt: skip
    found = propose(qwen, request, limits("1700M"), CPU)
    assert not found.fits
    chosen = found.chosen.settings
    assert (chosen.context, chosen.parallel, chosen.cache_type_k.name, chosen.load_mode) == (4096, 2, "f16", "mmap")
    assert limits("1700M").holds(found.chosen.total_bytes) is False


def test_what_cannot_fit_says_what_would_and_how_much_it_needs(qwen: Models) -> None:
    found = propose(qwen, PlanRequest(context=32768), limits("1400M"), CPU)
    assert not found.fits
    assert found.would_fit is not None
    assert limits("1400M").holds(found.would_fit.total_bytes)
    assert Limits(found.needed_high_bytes, found.needed_high_bytes, None, "").holds(found.chosen.total_bytes)
    assert "MiB = " in arithmetic(found.chosen, found.limits)
    nothing = propose(qwen, PlanRequest(), limits("300M"), CPU)
    assert not nothing.fits
    assert nothing.would_fit is None


def test_preallocation_leaves_nothing_that_grows_or_can_be_evicted(tmp_path: Path) -> None:
    models = read_models(family_makers.gemma4().write(tmp_path / "g.gguf"), None, None)
    found = propose(models, PlanRequest(context=1024, preallocate=True), limits("1G"), CPU)
    assert found.chosen.bytes_of("checkpoints") == found.chosen.bytes_of("prompt_cache") == 0
    assert not any(part.reclaimable for part in found.chosen.components)


@settings(max_examples=60, deadline=None)
@given(
    high_mib=st.integers(200, 8000),
    context=st.none() | st.integers(1, 40_000),
    parallel=st.none() | st.integers(1, 16),
    unified=st.booleans(),
    cpu=st.sampled_from(sorted(CPUS)),
)
def test_a_proposal_that_fits_is_below_85_percent_of_memory_high(
    qwen: Models, high_mib: int, context: int | None, parallel: int | None, unified: bool, cpu: str
) -> None:
    given_limits = limits(f"{high_mib}M")
    request = PlanRequest(context=context, parallel=parallel, unified=unified)
    found = propose(qwen, request, given_limits, CPUS[cpu])
    total = estimate(qwen, found.chosen.settings, CPUS[cpu]).total_bytes
    assert found.fits == (total * 100 < 85 * high_mib * MIB)
    assert found.chosen.settings.context == (context or found.chosen.settings.context)
    if found.fits:
        assert found.budget_left_bytes >= 0
        assert found.largest_context >= found.chosen.settings.context
        assert found.largest_parallel >= found.chosen.settings.parallel


def test_limits_follow_the_shares_of_a_board_that_also_does_other_work() -> None:
    four = limits_for(4000 * MIB, None)
    assert (four.memory_high_bytes, four.memory_max_bytes) == (2600 * MIB, 2800 * MIB)
    assert limits_for(None, 2600 * MIB).memory_max_bytes == 2800 * MIB
    assert limits_for(None, None).ram_bytes == host_ram_bytes()
    with pytest.raises(UserError, match="not below --ram"):
        limits_for(2 * MIB, 2 * MIB)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4G", 4 << 30), ("2600M", 2600 << 20), ("2600MiB", 2600 << 20), ("2.5g", 5 << 29), ("1048576", 1 << 20), ("64 K", 64 << 10)],
)  # fmt: skip
def test_sizes_are_read_as_systemd_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "4X", "1e9", "4GG", "٤G" * 20, "nan", "9" * 99])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no size"):
        parse_size(text)
