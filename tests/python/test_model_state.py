"""ModelState from Python: a step's plan becomes contexts and kept rows for layers of one's own."""

import pytest
import torch

from reprise import DecoderReplayLayers, ForwardContext, get_forward_context, override_forward_context
from reprise._reprise import (
    BlockTableUpdate,
    LayerRows,
    ModelStateBuilder,
    ReplayMode,
    RowPlan,
    ScheduledSequence,
    StepPlan,
    load_model_config,
    make_row_plan,
    make_step_row_plan,
)

PAGE = 16


@pytest.fixture
def config(data_dir):
    """Ten layers, of which four replay; window 8."""
    config = load_model_config(str(data_dir / "v41-tiny"))
    assert (config.num_hidden_layers, config.sliding_window, config.kv_source_layer_ids[-1]) == (10, 8, 5)
    return config


@pytest.fixture
def state(config):
    return ModelStateBuilder(config).max_num_seqs(4).max_model_len(64).page_size(PAGE).build()


def pages(slot, first, count=3):
    return [BlockTableUpdate(0, slot, i, first + i) for i in range(count)]


def test_a_bounded_prompt_and_a_decode_row_give_kept_rows_and_contexts(config, state):
    plan = make_row_plan(ReplayMode.kBounded, 40, config)
    prompt = ScheduledSequence(list(range(40)), state_slot=2, row_plan=plan)
    decode = ScheduledSequence([1, 2, 3, 4, 5], id=7, state_slot=0, prompt_length=4, start=4, samples=True)
    inputs = state.prepare(StepPlan([prompt, decode], pages(2, first=4) + pages(0, first=1)))
    assert inputs.token_ids.tolist() == [*range(40), 5]

    batch = inputs.forward_context
    assert isinstance(batch, ForwardContext) and inputs.forward_context is batch
    assert (batch.num_rows, batch.num_padding_rows, batch.is_replay) == (41, 0, False)
    attention = batch.attention
    assert attention.positions.tolist() == [*range(40), 4]
    assert attention.sequence_index.tolist() == [0] * 40 + [1]
    assert attention.sequence_starts.tolist() == [0, 40, 41]
    assert attention.state_slots.tolist() == [2, 0]
    assert attention.groups[0].window_starts.tolist() == [max(p - 7, 0) for p in range(40)] + [0]
    assert attention.cells[0].slots.tolist() == [4 * PAGE + p for p in range(40)] + [PAGE + 4]
    assert attention.groups[0].block_table[2].tolist() == [4, 5, 6, 0]
    assert batch.attn_metadata is None

    # The last KV source computes what the first replay layer receives: the prompt's last 8 rows and the decode row.
    assert all(inputs.layers[layer].rows is None for layer in range(5))
    kept = inputs.layers[5]
    assert kept.rows.tolist() == [*range(32, 40), 40]
    assert (kept.forward_context.num_rows, kept.forward_context.is_replay) == (9, True)
    assert kept.forward_context.attention.positions.tolist() == [*range(32, 40), 4]
    # It reads its whole window; the replay layers read no window key below their own rows.
    assert kept.forward_context.attention.groups[0].window_starts.tolist() == [*range(25, 33), 0]
    assert inputs.layers[6].rows is None
    assert inputs.layers[6].forward_context.attention.groups[0].window_starts.tolist() == [32] * 8 + [0]


def test_the_kept_rows_drive_replay_layers_of_ones_own(config, state):
    prompt = ScheduledSequence(list(range(40)), row_plan=make_row_plan(ReplayMode.kBounded, 40, config))
    inputs = state.prepare(StepPlan([prompt], pages(0, first=1)))
    seen = []

    def run_layers(hidden):
        seen.append(get_forward_context())
        return (hidden + get_forward_context().attention.positions.unsqueeze(1),)

    layers = DecoderReplayLayers(config.sliding_window, run_layers, [])
    layers.rows, layers.forward_context = inputs.layers[5].rows, inputs.layers[5].forward_context
    with override_forward_context(inputs.forward_context):
        (output,) = layers(torch.zeros(40, 1))
        assert get_forward_context() is inputs.forward_context
    assert seen[0] is layers.forward_context
    assert output.squeeze(1).tolist() == [0] * 32 + list(range(32, 40))


def test_row_plans_follow_the_modes_table(config):
    exact = make_row_plan(ReplayMode.kExact, 40, config)
    # Replay layer k of 4 computes rows from T - 1 - (4 - k)(W - 1) on: 18, 25, 32, 39.
    assert [layer.first_computed for layer in exact.layers[6:]] == [18, 25, 32, 39]
    assert all(layer.window_floor == 0 for layer in exact.layers)
    off = make_row_plan(ReplayMode.kOff, 40, config)
    assert all(layer == LayerRows() for layer in off.layers)
    step = make_step_row_plan(16, 20, config)  # rows 16..35 of a prompt: the last 8 are kept
    assert step.layers[6] == LayerRows(28, 28, 28)


def test_plans_that_do_not_fit_are_refused_and_change_nothing(config, state):
    update = pages(0, first=1)
    for sequence in (
        ScheduledSequence([1, 2], state_slot=4),
        ScheduledSequence([1, config.vocab_size]),
        ScheduledSequence([1], start=1, num_rows=1),
        ScheduledSequence([1] * 65),
        ScheduledSequence([1], row_plan=RowPlan([LayerRows()])),
    ):
        with pytest.raises(ValueError, match="wanted"):
            state.prepare(StepPlan([sequence], update))
    inputs = state.prepare(StepPlan([ScheduledSequence([1])]))
    assert inputs.forward_context.attention.groups[0].block_table.count_nonzero() == 0


def test_builders_refuse_settings_that_do_not_fit(config):
    with pytest.raises(ValueError, match="max_num_seqs"):
        ModelStateBuilder(config).max_num_seqs(0).build()
    with pytest.raises(ValueError, match="page_size"):
        ModelStateBuilder(config).page_size(3).build()
