"""Reprise: DeepSeek-V4.1-style decoders whose replay layers run on the rows that count."""

from reprise._reprise import (
    CacheDtype,
    CacheGroupStats,
    DecoderReplayLayers,
    Dtype,
    Engine,
    EngineConfig,
    EngineStats,
    FinishReason,
    ModelConfig,
    PrefixRebuild,
    ReplayMode,
    Request,
    load_model_config,
)
from reprise.forward_context import (
    ForwardContext,
    create_forward_context,
    get_forward_context,
    is_forward_context_available,
    override_forward_context,
    set_forward_context,
)
from reprise.llm import LLM
from reprise.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from reprise.sampling_params import SamplingParams
from reprise.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CacheDtype",
    "CacheGroupStats",
    "CompletionOutput",
    "DecoderReplayLayers",
    "Dtype",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "FinishReason",
    "ForwardContext",
    "Logprob",
    "ModelConfig",
    "PrefixRebuild",
    "ReplayMode",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "Tokenizer",
    "create_forward_context",
    "get_forward_context",
    "is_forward_context_available",
    "load_model_config",
    "override_forward_context",
    "set_forward_context",
]
