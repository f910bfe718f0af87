"""The work of a compiled program and the time of a step, read without a TPU and its compiler."""

import hlo
import jax
import jax.numpy as jnp
import pytest
import tpu_costs
import tpu_slices
import tpu_waterfall
from compiled_step import estimate_stage
from helpers import tiny_run
from jax.sharding import PartitionSpec

from pe_jax.trainer.tasks import text_training
from pe_jax.trainer.training import sharding


def slice_of(name, *shape):
    return tpu_slices.Slice(name, tpu_slices.TPUS[name], shape, mesh=None)


V5E = slice_of("v5e", 2, 4)


# --- reading a program ----------------------------------------------------------------------------

# As the TPU compiler prints it, shortened: a loop of 5 - 1 runs with a loop of unknown length in
# it, a reduce-scatter, a gather in two parts that overlap with matmuls, and one of each other kind
# of work.
MODULE = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={()->f32[8,128]{1,0:T(8,128)}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%fused (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %twice = f32[8,128]{1,0:T(8,128)} add(%p, %p)
}

%all-reduce-scatter (p.1: bf16[16,128]) -> bf16[8,128] {
  %p.1 = bf16[16,128]{1,0} parameter(0)
  %all-reduce.9 = bf16[16,128]{1,0} all-reduce(%p.1), channel_id=1, to_apply=%sum
  ROOT %part = bf16[8,128]{1,0} dynamic-slice(%all-reduce.9), dynamic_slice_sizes={8,128}
}

%async_first (p.2: bf16[8,128]) -> bf16[16,128] {
  %p.2 = bf16[8,128]{1,0} parameter(0)
  ROOT %all-gather.1 = bf16[16,128]{1,0} all-gather(%p.2), channel_id=3, frontend_attributes={chain_id="0"}
}

%async_second (p.3: bf16[8,128]) -> bf16[16,128] {
  %p.3 = bf16[8,128]{1,0} parameter(0)
  ROOT %all-gather.2 = bf16[16,128]{1,0} all-gather(%p.3), channel_id=3, frontend_attributes={chain_id="0"}
}

%inner_condition (s: (s32[], f32[8,128])) -> pred[] {
  %s = (s32[], f32[8,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8,128]{1,0} get-tuple-element(%s), index=1
  %limit = s32[] custom-call(%x), custom_call_target="Bookkeeping"
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%inner_body (s.1: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %s.1 = (s32[], f32[8,128]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %x.1 = f32[8,128]{1,0} get-tuple-element(%s.1), index=1
  %y.1 = f32[8,128]{1,0} fusion(%x.1), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"3"}}
  ROOT %t.1 = (s32[], f32[8,128]{1,0}) tuple(%i.1, %y.1)
}

%condition (s.2: (s32[], f32[8,128])) -> pred[] {
  %five = s32[]{:T(128)} constant(5)
  %s.2 = (s32[], f32[8,128]{1,0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.2), index=0
  ROOT %less.2 = pred[] compare(%i.2, %five), direction=LT
}

%body (s.3: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %s.3 = (s32[], f32[8,128]{1,0}) parameter(0)
  %x.3 = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%s.3), index=1
  %i.3 = s32[] get-tuple-element(%s.3), index=0
  %y.3 = f32[8,128]{1,0} fusion(%x.3), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"100"}}
  %r.3 = f32[8,128]{1,0} all-reduce(%y.3), channel_id=1, to_apply=%sum
  %t.3 = (s32[], f32[8,128]{1,0}) tuple(%i.3, %r.3)
  ROOT %while.3 = (s32[], f32[8,128]{1,0}) while(%t.3), condition=%inner_condition, body=%inner_body
}

ENTRY %main (x.4: f32[8,128], h: bf16[16,128], g: bf16[8,128]) -> f32[8,128] {
  %x.4 = f32[8,128]{1,0} parameter(0), metadata={op_name="x(4)"}
  %h = bf16[16,128]{1,0} parameter(1)
  %g = bf16[8,128]{1,0} parameter(2)
  %one = s32[] constant(1)
  %one.1 = s32[] copy(%one)
  %copy-start = (f32[8,128]{1,0:S(1)}, f32[8,128]{1,0}, u32[]{:S(2)}) copy-start(%x.4)
  %copy-done = f32[8,128]{1,0:S(1)} copy-done(%copy-start)
  %tuple = (s32[], /*index=1*/f32[8,128]{1,0}) tuple(%one.1, /*index=1*/%copy-done)
  %while = (s32[], f32[8,128]{1,0}) while(%tuple), condition=%condition, body=%body
  %scatter = bf16[8,128]{1,0} fusion(%h), kind=kCustom, calls=%all-reduce-scatter, backend_config={"flag_configs":[]}
  %first = bf16[16,128]{1,0} fusion(%g), kind=kCustom, calls=%async_first
  %second = bf16[16,128]{1,0} fusion(%g), kind=kOutput, calls=%async_second, backend_config={"window_config":{"estimated_cycles":"7"}}
  %start = (bf16[8,128]{1,0}, bf16[16,128]{1,0}) all-gather-start(%g), channel_id=5
  %done = bf16[16,128]{1,0} all-gather-done(%start)
  %stated = f32[8,128]{1,0} custom-call(%x.4), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"e30(","cost_estimate":{"flops":"1000","bytes_accessed":"50"}}}
  %silent = f32[8,128]{1,0} custom-call(%x.4), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":""}}
  %gather = f32[4,128]{1,0} gather(%x.4, %one), offset_dims={1}
  ROOT %out = f32[8,128]{1,0} get-tuple-element(%while), index=1
}
"""  # noqa: E501


def work(kind):
    return [one for one in hlo.read(MODULE).work if one.kind == kind]


def test_cycles_count_as_often_as_they_run():
    found = {one.name: (one.times, one.cycles) for one in work("estimated")}
    assert found == {"y.3": (4, 100), "y.1": (4, 3), "second": (1, 7)}
    assert hlo.read(MODULE).unknown_loops == ["while.3"]


def test_collectives_and_what_overlaps():
    found = [
        (one.name, one.times, one.bytes, one.overlapped) for one in work("collective")
    ]
    assert found == [
        ("all-reduce", 4, 4096, False),
        ("reduce-scatter", 1, 4096, False),
        ("all-gather", 1, 4096, True),  # In two parts, one collective.
        ("all-gather", 1, 4096, True),
    ]
    assert tpu_costs.collectives(hlo.read(MODULE).work)[2] == {
        "name": "all-gather", "overlapped": True, "count": 2, "bytes": 8192,
    }  # fmt: skip
    assert [(one.name, one.bytes) for one in work("copy")] == [("copy-done", 4096)]


def test_kernels_and_what_has_no_estimate():
    found = [(one.name, one.flops, one.bytes) for one in work("kernel")]
    assert found == [("stated", 1000, 50), ("silent", 0, 8192)]
    large = {one.name: one.bytes for one in work("memory") if one.bytes > 100}
    assert large == {"gather": 2048 + 4096 + 4}
    assert {one.name for one in work("memory")} >= {"one.1", "less", "less.2"}
    assert not {"first", "scatter", "limit", "tuple"} & {
        one.name for one in work("memory")
    }


def test_shapes_in_bytes():
    shape = "(f32[12,64]{1,0:T(8,128)S(1)}, /*index=1*/bf16[3]{0}, pred[], s4[6], f8e4m3fn[2])"
    assert hlo.shape_bytes(shape) == 4 * 12 * 64 + 2 * 3 + 1 + 3 + 2
    assert hlo.shape_bytes("token[]") == 0


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['data'=8] {'data'}", 8),
        ("mesh['seeds'=4,'data'=2] {'data'}", 2),
        ("{}", 0),
    ],
)
def test_devices_of_a_collective(groups, count):
    """And what they send: all but their own part."""
    text = f"""\
ENTRY %main (x: f32[1000]) -> f32[1000] {{
  %x = f32[1000] parameter(0)
  ROOT %r = f32[1000] all-reduce(%x), replica_groups={groups}, to_apply=%sum
}}
"""
    reading = hlo.read(text).work
    assert [one.group for one in reading] == [count]
    sharing = count or 8
    sent = 2 * 4000 * (sharing - 1) / sharing
    assert tpu_costs.link_seconds(reading, V5E) == pytest.approx(sent / 100e9)


def test_what_is_sent_to_another_slice():
    """The compiler's program for two slices: a sum in each, then parts of it between them."""
    text = """\
ENTRY %main (x: bf16[1000]) -> bf16[125] {
  %x = bf16[1000] parameter(0)
  %token = token[] after-all()
  %r = bf16[125] reduce-scatter(%x), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %s = (bf16[125], u32[], token[]) send(%r, %token), channel_id=1, is_host_transfer=true
  %sd = token[] send-done(%s), channel_id=1
  %v = (bf16[125], u32[], token[]) recv(%token), channel_id=2, is_host_transfer=true
  %vd = (bf16[125], token[]) recv-done(%v), channel_id=2
  ROOT %out = bf16[125] get-tuple-element(%vd), index=0
}
"""
    reading = hlo.read(text).work
    assert [(one.kind, one.bytes) for one in reading if not one.overlapped] == [
        ("collective", 2000),
        ("send", 250),
    ]
    seconds = 2000 * 7 / 8 / 100e9 + 250 / 3.125e9
    assert tpu_costs.seconds(reading, V5E)["collectives"] == pytest.approx(seconds)
    assert tpu_costs.parts(reading, V5E)["collectives"] == pytest.approx(seconds)


def test_what_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo.read("HloModule nothing")


def test_the_costlier_branch_counts():
    """A conditional has both branches, but only one runs."""
    text = """\
%b0 (p0: f32[]) -> f32[] {
  %p0 = f32[] parameter(0)
  ROOT %f0 = f32[] negate(%p0), backend_config={"estimated_cycles":"5"}
}

%b1 (p1: f32[]) -> f32[] {
  %p1 = f32[] parameter(0)
  ROOT %f1 = f32[] negate(%p1), backend_config={"estimated_cycles":"9"}
}

ENTRY %main (i: s32[], x: f32[]) -> f32[] {
  %i = s32[] parameter(0)
  %x = f32[] parameter(1)
  ROOT %c = f32[] conditional(%i, %x, %x), branch_computations={%b0, %b1}
}
"""
    assert [(one.name, one.cycles) for one in hlo.read(text).work] == [("f1", 9)]


def test_a_program_compiled_here():
    """Seven runs of a loop, each with a sum over the devices."""
    mesh = sharding.data_mesh()

    def step(x):
        def body(total, _):
            return total + jax.lax.psum(x * total, sharding.AXIS), None

        return jax.lax.scan(body, x, None, length=7)[0]

    rows = PartitionSpec(sharding.AXIS)
    mapped = jax.shard_map(step, mesh=mesh, in_specs=rows, out_specs=rows)
    x = sharding.abstract(
        jax.ShapeDtypeStruct((8, 5), jnp.float32), sharding.by_rows(mesh)
    )
    reading = hlo.read(jax.jit(mapped).lower(x).compile().as_text())
    assert not reading.unknown_loops
    assert tpu_costs.collectives(reading.work) == [
        {"name": "all-reduce", "overlapped": False, "count": 7, "bytes": 7 * 2 * 5 * 4}
    ]


# --- from work to seconds and bytes ---------------------------------------------------------------


def test_seconds_by_hand():
    one = [
        hlo.Work("estimated", "a", 3, cycles=1500),
        hlo.Work("kernel", "b", 2, flops=10**9, bytes=1),
        hlo.Work("kernel", "c", 1, flops=1, bytes=10**9),
        hlo.Work("memory", "d", 1, bytes=10**6),
        hlo.Work("copy", "e", 1, bytes=10**12, overlapped=True),
        hlo.Work("collective", "all-reduce", 1, bytes=10**6),
        hlo.Work("collective", "all-gather", 1, bytes=10**6),
        hlo.Work("collective", "all-gather", 1, bytes=10**12, overlapped=True),
    ]
    found = tpu_costs.seconds(one, V5E)
    assert found["estimated"] == pytest.approx(3e-6)
    assert found["kernels"] == pytest.approx(2e9 / 197e12 + 1e9 / 819e9)
    assert found["unestimated"] == pytest.approx(1e6 / 819e9)
    # Each of 8 chips sends 7/8 of the bytes, twice to reduce; by a link along each axis of 50 GB/s,
    # on a torus by two.
    assert found["collectives"] == pytest.approx(3 * 1e6 * 7 / 8 / 100e9)

    def time(name, *shape):
        return tpu_costs.seconds(one, slice_of(name, *shape))["collectives"]

    assert time("v5e", 16, 16) == pytest.approx(3 * 1e6 * 255 / 256 / 200e9)
    assert time("v5e", 2, 1) == pytest.approx(3 * 1e6 / 2 / 50e9)
    assert time("v5p", 2, 2, 2) == pytest.approx(3 * 1e6 * 7 / 8 / 300e9)
    assert time("v5p", 4, 4, 4) == pytest.approx(3 * 1e6 * 63 / 64 / 600e9)
    assert time("v5e", 1, 1) == 0


def test_what_the_seconds_are_spent_on():
    step = "jit(train_step)/transpose(jvp(BertForPretraining))"
    work = [
        hlo.Work(
            "estimated",
            "a",
            1,
            cycles=1,
            scope=f"{step}/bert/layer_1/up/dot",
            product=True,
        ),
        hlo.Work(
            "estimated", "b", 1, cycles=2, scope=f"{step}/bert/layer_11/mlp_norm/mul"
        ),
        hlo.Work("estimated", "c", 1, cycles=4, scope=f"{step}/masked_lm/norm/mul"),
        hlo.Work(
            "estimated", "d", 1, cycles=8, scope="jit(train_step)/jvp()/reduce_sum"
        ),
        hlo.Work(
            "estimated", "e", 1, cycles=16, scope=f"{step}/bert/token/scatter-add"
        ),
        hlo.Work("estimated", "f", 1, cycles=32, scope="jit(train_step)/add"),
        hlo.Work("estimated", "g", 1, cycles=64),
        hlo.Work("kernel", "h", 1, flops=10**6, scope=f"{step}/bert/layer_1/attention"),
        hlo.Work("collective", "all-reduce", 1, bytes=10**6),
    ]
    parts, seconds = (read(work, V5E) for read in (tpu_costs.parts, tpu_costs.seconds))
    cycles = {name: round(value * V5E.tpu.clock) for name, value in parts.items()}
    names = list(tpu_costs.PARTS)
    assert [cycles[name] for name in names[2:]] == [1, 2, 4 + 8, 16, 32, 64]
    assert (
        parts[names[0]] == seconds["collectives"]
        and parts[names[1]] == seconds["kernels"]
    )
    assert sum(parts.values()) == pytest.approx(sum(seconds.values()))


# --- the report -----------------------------------------------------------------------------------


def test_the_report(tmp_path):
    """Of a step that is compiled for this machine's devices instead of a slice's."""
    resolved = text_training.resolve(tiny_run.config(tmp_path))
    chips_here = tpu_slices.Slice(
        "v5e:2x2", tpu_slices.TPUS["v5e"], (2, 2), sharding.data_mesh()
    )
    estimate = estimate_stage(resolved, resolved.config.stage1, chips_here)
    times = tpu_waterfall.waterfall(estimate, chips_here)
    assert times.mfu == pytest.approx(
        estimate.model_flops / times.step_seconds / (4 * 197e12)
    )
    assert times.mfu < estimate.mfu_bound
    # All gradients are reduced among the chips, and almost nothing else.
    parameters = estimate.memory["parameters"]
    assert parameters < sum(one["bytes"] for one in times.collectives) < 2 * parameters
    assert times.unknown_loops == 0
    text = tpu_waterfall.report(estimate, chips_here)
    assert text.startswith("## Length 32: 8 rows, 2 a chip\n\n0.00 GiB a chip. About ")
    assert "| time of a step" in text and "| all-reduce" in text
    assert "Does not fit: why" in tpu_waterfall.report(
        estimate._replace(failure="why"), chips_here
    )
