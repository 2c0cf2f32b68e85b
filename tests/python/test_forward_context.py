"""The forward context as a script written for vLLM's helpers uses it."""

import copy
import dataclasses
import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from reprise.forward_context import (
    ForwardContext,
    create_forward_context,
    get_forward_context,
    is_forward_context_available,
    override_forward_context,
    set_forward_context,
)

VLLM_FIELDS = [
    "no_compile_layers",
    "attn_metadata",
    "slot_mapping",
    "is_padding",
    "dp_metadata",
    "batch_descriptor",
    "cudagraph_runtime_mode",
    "ubatch_slices",
    "virtual_engine",
    "skip_compiled",
    "additional_kwargs",
]


def test_fields_are_the_very_objects_that_were_passed():
    values = {name: object() for name in VLLM_FIELDS}
    context = ForwardContext(**values)
    for name, value in values.items():
        assert getattr(context, name) is value


def test_fields_have_defaults_of_their_own():
    first, second = ForwardContext(), ForwardContext()
    assert first.attn_metadata is None and first.is_padding is None and first.skip_compiled is False
    for name in ("no_compile_layers", "slot_mapping", "additional_kwargs"):
        assert getattr(first, name) == {}
        getattr(first, name)["layer"] = 1
        assert getattr(second, name) == {}


def test_the_first_three_fields_may_be_positional():
    layers, metadata, slots = {}, object(), {}
    context = ForwardContext(layers, metadata, slots)
    assert context.no_compile_layers is layers and context.attn_metadata is metadata and context.slot_mapping is slots
    with pytest.raises(TypeError, match="two values for attn_metadata"):
        ForwardContext(layers, metadata, attn_metadata=None)
    with pytest.raises(TypeError, match="at most 3"):
        ForwardContext(1, 2, 3, 4)


def test_any_attribute_may_be_given_and_set():
    context = ForwardContext(remaining_moe_layers=["a"])
    context.attn_metadata = "new"
    context.of_my_own = 5
    assert context.remaining_moe_layers == ["a"] and context.attn_metadata == "new" and context.of_my_own == 5


def test_replace_and_copy_make_new_contexts():
    context = ForwardContext(attn_metadata="batch", no_compile_layers={"a": 1}, batch_descriptor="b")
    replaced = dataclasses.replace(context, attn_metadata="replay")
    assert (replaced.attn_metadata, replaced.no_compile_layers, replaced.batch_descriptor) == ("replay", {"a": 1}, "b")
    assert context.attn_metadata == "batch"
    copied = copy.copy(context)
    assert copied is not context and vars(copied) == vars(context)


def test_override_is_current_inside_and_gone_outside():
    assert not is_forward_context_available()
    context = ForwardContext(attn_metadata="m")
    with override_forward_context(context):
        assert is_forward_context_available()
        assert get_forward_context() is context
    assert not is_forward_context_available()
    with pytest.raises(AssertionError, match="Forward context is not set"):
        get_forward_context()


def test_overrides_nest_and_none_hides_the_outer_one():
    outer, inner = ForwardContext(), ForwardContext()
    with override_forward_context(outer):
        with override_forward_context(inner):
            with override_forward_context(None):
                assert not is_forward_context_available()
                with pytest.raises(AssertionError):
                    get_forward_context()
            assert get_forward_context() is inner
        assert get_forward_context() is outer


def test_an_exception_restores_the_outer_context():
    outer = ForwardContext()
    with override_forward_context(outer):
        with pytest.raises(ZeroDivisionError), override_forward_context(ForwardContext()):
            raise ZeroDivisionError
        assert get_forward_context() is outer


def test_one_override_may_be_entered_again_also_while_it_is_current():
    context = ForwardContext()
    override = override_forward_context(context)
    with override, override_forward_context(None), override:
        assert get_forward_context() is context
    assert not is_forward_context_available()
    with override:
        assert get_forward_context() is context


def test_threads_have_stacks_of_their_own():
    seen = {}

    def other():
        seen["at start"] = is_forward_context_available()
        own = ForwardContext()
        with override_forward_context(own):
            seen["own"] = get_forward_context() is own

    mine = ForwardContext()
    with override_forward_context(mine):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert get_forward_context() is mine
    assert seen == {"at start": False, "own": True}


def test_an_override_cannot_be_left_on_another_thread():
    override = override_forward_context(ForwardContext())
    caught = []

    def leave():
        try:
            override.__exit__(None, None, None)
        except RuntimeError as error:
            caught.append(str(error))

    with override:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert is_forward_context_available()
    assert len(caught) == 1 and "thread" in caught[0]


def test_any_object_may_be_a_context():
    context = SimpleNamespace(attn_metadata="m")
    with override_forward_context(context):
        assert get_forward_context() is context
        with override_forward_context(ForwardContext()):
            assert get_forward_context() is not context
        assert get_forward_context() is context


def test_subclasses_keep_their_type_and_state():
    class Mine(ForwardContext):
        def __init__(self, extra, **fields):
            super().__init__(**fields)
            self.extra = extra

    context = Mine(3, attn_metadata="m")
    with override_forward_context(context):
        assert type(get_forward_context()) is Mine
        assert get_forward_context().extra == 3 and get_forward_context().attn_metadata == "m"


def test_contexts_are_freed_also_from_reference_cycles():
    context = ForwardContext()
    context.additional_kwargs["self"] = context
    with override_forward_context(context):
        pass
    watched = weakref.ref(context)
    del context
    gc.collect()
    assert watched() is None


def test_set_forward_context_takes_the_layers_from_a_config():
    layers = {"model.layers.0": object()}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    metadata = {"model.layers.0": torch.arange(3)}
    with set_forward_context(metadata, config, num_tokens=3, slot_mapping=None, cudagraph_runtime_mode="NONE"):
        context = get_forward_context()
        assert context.no_compile_layers is layers and context.attn_metadata is metadata
        assert context.slot_mapping == {} and context.cudagraph_runtime_mode == "NONE" and context.num_tokens == 3
    assert not is_forward_context_available()
    assert create_forward_context(None, None, batch_descriptor="b").batch_descriptor == "b"


def test_the_facts_of_the_engine_are_read_only():
    context = ForwardContext()
    assert (context.num_rows, context.num_padding_rows, context.is_replay) == (0, 0, False)
    assert context.attention.positions is None and context.attention.cells == []
    with pytest.raises(AttributeError):
        context.num_rows = 3
