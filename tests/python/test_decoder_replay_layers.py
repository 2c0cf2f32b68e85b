"""DecoderReplayLayers beside the same work by hand in PyTorch, and under hostile use."""

import gc
import os
import random
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from reprise import (
    DecoderReplayLayers,
    ForwardContext,
    get_forward_context,
    is_forward_context_available,
    override_forward_context,
)

WINDOW = 128
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def replay_by_hand(run_layers, rows, row_buffers, hidden_states, *states):
    for buffer in row_buffers:
        buffer[: len(rows)] = buffer.index_select(0, rows)
    outputs = run_layers(
        hidden_states.index_select(0, rows), *(None if s is None else s.index_select(0, rows) for s in states)
    )
    return tuple(
        torch.zeros(hidden_states.shape[0], *out.shape[1:], dtype=out.dtype, device=out.device).index_copy_(
            0, rows.long(), out
        )
        for out in outputs
    )


def values(generator, shape, dtype, device="cpu"):
    numbers = torch.randint(-100, 100, shape, generator=generator)
    return (numbers / 7 if dtype.is_floating_point else numbers).to(dtype).to(device)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@pytest.fixture
def generator(request):
    seed = int(os.environ.get("REPRISE_TEST_SEED", random.SystemRandom().randrange(2**31)))
    print("seed", seed)
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_equals_the_work_by_hand(device, dtype, index_dtype, generator):
    for num_kept in (0, 1, 5, 23, 60):
        num_rows = 41
        kept = torch.randint(0, num_rows, (num_kept,), generator=generator)
        for rows in (kept, kept.sort().values, kept.unique(), torch.arange(41 - min(41, num_kept), 41)):
            rows = rows.to(index_dtype).to(device)
            hidden = values(generator, (num_rows, 6), dtype, device)
            states = (
                values(generator, (num_rows, 4, 6), dtype, device),
                None,
                torch.arange(num_rows, device=device),
                values(generator, (6, num_rows), dtype, device).t(),  # rows not contiguous
                values(generator, (num_rows, 9), dtype, device)[:, 2:5],  # rows apart
                values(generator, (num_rows,), dtype, device),
                values(generator, (6,), dtype, device).expand(num_rows, 6),  # every row the same memory
            )

            def run_layers(h, residual, absent, positions, transposed, apart, flat, expanded):
                assert absent is None
                wide = torch.stack([residual, residual], dim=2)  # [rows, 4, 2, 6]
                return wide, h, positions + 1, transposed, apart, flat, expanded, residual.transpose(1, 2)

            buffers = [torch.arange(num_rows * 3, device=device).view(num_rows, 3).int() for _ in range(2)]
            if num_kept > num_rows:
                buffers = []
            expected_buffers = [b.clone() for b in buffers]
            expected = replay_by_hand(run_layers, rows, expected_buffers, hidden, *states)
            layers = DecoderReplayLayers(WINDOW, run_layers, buffers)
            layers.rows = rows
            outputs = layers(hidden, *states)
            assert isinstance(outputs, tuple) and len(outputs) == len(expected)
            for mine, theirs in zip(outputs, expected, strict=True):
                # Which of a repeated row's outputs wins is left open on a GPU.
                if device == "cpu" or len(rows.unique()) == len(rows):
                    assert same_bits(mine, theirs)
            for mine, theirs in zip(buffers, expected_buffers, strict=True):
                assert same_bits(mine, theirs)
            for mine, state in zip(
                layers.run_kept(hidden, *states), run_layers(*_kept((hidden, *states), rows)), strict=True
            ):
                assert same_bits(mine, state)


def _kept(states, rows):
    return [None if s is None else s.index_select(0, rows) for s in states]


def test_large_outputs_are_zero_where_trimmed_however_often():
    hidden = torch.ones(3000, 1024)  # 12 MB
    layers = DecoderReplayLayers(WINDOW, lambda h: (h, h[:, :300]), [])
    layers.rows = torch.cat([torch.arange(5, 1200), torch.tensor([2999])])
    for _ in range(3):
        for output in layers(hidden):
            assert output[layers.rows].eq(1).all()
            assert output.sum() == 1196 * output.shape[1]
            output.fill_(5)


def test_outputs_alias_nothing_and_stay_as_they_are():
    stash = []

    def run_layers(hidden):
        stash.append(hidden)
        return hidden, hidden

    layers = DecoderReplayLayers(WINDOW, run_layers, [])
    layers.rows = torch.tensor([0, 2])
    first = layers(torch.full((3, 4), 1.0))
    second = layers(torch.full((3, 4), 2.0))
    pointers = {t.data_ptr() for t in (*first, *second, *stash)}
    assert len(pointers) == 6
    stash[1].fill_(9)
    assert first[0].tolist() == [[1.0] * 4, [0.0] * 4, [1.0] * 4]
    assert second[1].tolist() == [[2.0] * 4, [0.0] * 4, [2.0] * 4]
    assert stash[0].eq(1).all()


def test_what_shares_a_gathered_input_is_left_alone():
    """A NumPy array over an input keeps its memory, though the tensor is gone."""
    arrays = []
    layers = DecoderReplayLayers(WINDOW, lambda h: arrays.append(h.numpy()) or (h,), [])
    layers.rows = torch.tensor([1])
    for value in (1.0, 2.0, 3.0):
        layers(torch.full((2, 4), value))
    assert [array[0, 0] for array in arrays] == [1.0, 2.0, 3.0]


def test_layers_may_change_resize_and_tag_their_inputs():
    def run_layers(hidden):
        assert not hasattr(hidden, "seen")
        hidden.seen = True
        hidden.neg_()
        result = hidden.clone()
        hidden.resize_(1000, 1000)
        return (result,)

    layers = DecoderReplayLayers(WINDOW, run_layers, [])
    layers.rows = torch.tensor([1])
    hidden = torch.tensor([[3.0], [4.0]])
    for _ in range(2):
        assert layers(hidden)[0].tolist() == [[0.0], [-4.0]]
    assert hidden.tolist() == [[3.0], [4.0]]


def test_without_rows_the_whole_batch_runs_under_the_current_context():
    result = [object()]
    seen = []

    def run_layers(*args):
        seen.append((args, get_forward_context()))
        return result

    layers = DecoderReplayLayers(WINDOW, run_layers, [])
    layers.forward_context = ForwardContext()
    hidden, batch = torch.ones(3, 1), ForwardContext()
    assert layers.rows is None
    with override_forward_context(batch):
        assert layers(hidden, None) is result
    assert seen[0][0][0] is hidden and seen[0][0][1] is None and seen[0][1] is batch


@pytest.mark.parametrize("make_context", [ForwardContext, SimpleNamespace])
def test_runs_under_its_context_and_restores_the_outer_one(make_context):
    batch, replay = make_context(), make_context()
    seen = []

    def run_layers(hidden):
        seen.append(get_forward_context())
        if hidden[0, 0] < 0:
            raise KeyError("from a layer")
        return (hidden,)

    layers = DecoderReplayLayers(WINDOW, run_layers, [])
    layers.rows, layers.forward_context = torch.tensor([1]), replay
    with override_forward_context(batch):
        layers(torch.ones(2, 1))
        assert get_forward_context() is batch
        with pytest.raises(KeyError, match="from a layer"):
            layers(-torch.ones(2, 1))
        assert get_forward_context() is batch
    assert seen[0] is replay and seen[1] is replay
    with pytest.raises(KeyError):
        layers(-torch.ones(2, 1))
    assert not is_forward_context_available()


def test_without_a_context_of_its_own_the_outer_one_is_hidden():
    layers = DecoderReplayLayers(WINDOW, lambda h: (h + int(is_forward_context_available()),), [])
    layers.rows = torch.tensor([0])
    with override_forward_context(ForwardContext()):
        assert layers(torch.zeros(1, 1))[0].item() == 0


@pytest.mark.parametrize("bad", [[5], [-1], [0, 2**62], [-(2**63), 1], [1, 2, -5]])
def test_rows_outside_the_batch_raise_before_anything_is_written(bad):
    buffer = torch.arange(10).view(5, 2)
    calls = []
    layers = DecoderReplayLayers(WINDOW, lambda *a: calls.append(a), [buffer])
    layers.rows = torch.tensor(bad)
    with pytest.raises(IndexError, match=r"rows in \[0, 5\)"):
        layers(torch.ones(5, 3))
    with pytest.raises(IndexError):
        layers.run_kept(torch.ones(5, 3))
    assert buffer.tolist() == torch.arange(10).view(5, 2).tolist() and not calls


def test_rows_outside_one_state_or_row_buffer_raise_too():
    layers = DecoderReplayLayers(WINDOW, lambda *a: a, [])
    layers.rows = torch.tensor([3])
    with pytest.raises(IndexError, match="a state"):
        layers(torch.ones(5, 3), torch.ones(3))
    layers.row_buffers = [torch.ones(3, 1)]
    with pytest.raises(IndexError, match="a row buffer"):
        layers(torch.ones(5, 3))


@pytest.mark.parametrize("rows", [torch.tensor([1.0]), torch.tensor([True]), torch.tensor(1), torch.tensor([[1]])])
def test_rows_must_be_a_vector_of_integers(rows):
    layers = DecoderReplayLayers(WINDOW, lambda *a: a, [])
    layers.rows = rows
    with pytest.raises(ValueError, match="int32 or int64"):
        layers(torch.ones(5, 3))


def test_outputs_must_have_one_row_per_kept_row():
    layers = DecoderReplayLayers(WINDOW, lambda h: (h, h[:1]), [])
    layers.rows = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="output 1 .* 2 rows"):
        layers(torch.ones(5, 3))
    layers.run_layers = lambda h: (h.sum(),)
    with pytest.raises(ValueError, match="2 rows"):
        layers(torch.ones(5, 3))


def test_wrong_types_say_what_was_wanted():
    layers = DecoderReplayLayers(WINDOW, lambda h, *s: 3, [])
    layers.rows = torch.tensor([0])
    with pytest.raises(TypeError, match="tuple of tensors but got int"):
        layers(torch.ones(1, 1))
    with pytest.raises(TypeError, match="hidden_states"):
        layers([1.0])
    with pytest.raises(TypeError, match="every state"):
        layers(torch.ones(1, 1), "state")
    layers.rows = [0]
    with pytest.raises(TypeError, match="rows as a tensor"):
        layers(torch.ones(1, 1))
    with pytest.raises(TypeError, match="callable"):
        DecoderReplayLayers(WINDOW, None, [])
    with pytest.raises(TypeError, match="row buffers"):
        DecoderReplayLayers(WINDOW, print, [None])
    with pytest.raises(ValueError, match="window"):
        DecoderReplayLayers(0, print, [])


def test_results_take_the_shape_that_run_layers_gives():
    layers = DecoderReplayLayers(WINDOW, lambda h: h, [])
    layers.rows = torch.tensor([1])
    hidden = torch.tensor([[3.0], [4.0]])
    assert layers(hidden).tolist() == [[0.0], [4.0]]
    layers.run_layers = lambda h: [h, None]
    scattered, absent = layers(hidden)
    assert scattered.tolist() == [[0.0], [4.0]] and absent is None
    layers.run_layers = lambda h: ()
    assert layers(hidden) == ()


def test_attributes_are_the_objects_that_were_set_and_may_be_replaced():
    buffers, rows, context = [torch.zeros(2, 1)], torch.tensor([0]), ForwardContext()

    def run_layers(hidden):
        return (hidden,)

    layers = DecoderReplayLayers(window=WINDOW, run_layers=run_layers, row_buffers=buffers)
    layers.rows, layers.forward_context = rows, context
    assert layers.window == WINDOW and layers.run_layers is run_layers and layers.row_buffers is buffers
    assert layers.rows is rows and layers.forward_context is context
    layers.trim_threshold = 7
    assert layers.trim_threshold == 7
    second = torch.tensor([[1.0], [2.0]])
    buffers.append(second)  # the list is read at every call
    layers.rows = torch.tensor([1])
    layers(torch.ones(2, 1))
    assert second.tolist() == [[2.0], [2.0]]


def test_nested_replays_of_one_object():
    depth = []

    def run_layers(hidden):
        before = hidden.clone()
        if not depth:
            depth.append(1)
            outer, layers.rows = layers.rows, torch.tensor([1])
            (inner,) = layers(hidden)
            layers.rows = outer
            assert inner[1].equal(before[1]) and inner.count_nonzero() == before[1].numel()
        assert hidden.equal(before)
        return (hidden,)

    layers = DecoderReplayLayers(WINDOW, run_layers, [])
    layers.rows = torch.tensor([3, 0, 2])
    hidden = torch.arange(1.0, 9.0).view(4, 2)
    assert layers(hidden)[0].tolist() == [[1, 2], [0, 0], [5, 6], [7, 8]]


def test_threads_may_share_one_object():
    layers = DecoderReplayLayers(WINDOW, lambda h: (h * 2,), [])
    layers.rows = torch.tensor([1, 3])
    wrong = []

    def work(value):
        hidden = torch.full((4, 1000), float(value))
        expected = torch.zeros(4, 1000)
        expected[[1, 3]] = 2.0 * value
        wrong.extend(value for _ in range(50) if not layers(hidden)[0].equal(expected))

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_gradients_and_inference_mode():
    layers = DecoderReplayLayers(WINDOW, lambda h: (h * 3,), [])
    layers.rows = torch.tensor([0, 2])
    hidden = torch.ones(3, 2, requires_grad=True)
    layers(hidden)[0].sum().backward()
    assert hidden.grad.tolist() == [[3.0, 3.0], [0.0, 0.0], [3.0, 3.0]]
    with torch.inference_mode():
        output = layers(torch.ones(3, 2))[0]
        assert output.is_inference() and output.tolist() == [[3.0, 3.0], [0.0, 0.0], [3.0, 3.0]]


def test_a_model_that_holds_its_replay_layers_is_freed():
    class Model:
        def __init__(self):
            self.layers = DecoderReplayLayers(WINDOW, self.run, [])
            self.layers.rows = torch.tensor([0])
            self.layers.forward_context = ForwardContext(no_compile_layers={"model": self})

        def run(self, hidden):
            return (hidden,)

    model = Model()
    model.layers(torch.ones(1, 1))
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_may_lie_on_another_device_than_the_states():
    layers = DecoderReplayLayers(WINDOW, lambda h: (h,), [])
    hidden = torch.arange(1.0, 9.0, device="cuda").view(4, 2)
    for rows in (torch.tensor([1, 3]), torch.tensor([1, 3], dtype=torch.int32, device="cuda")):
        layers.rows = rows
        assert layers(hidden)[0].tolist() == [[0, 0], [3, 4], [0, 0], [7, 8]]
        assert layers(hidden.cpu())[0].tolist() == [[0, 0], [3, 4], [0, 0], [7, 8]]
