#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "bindings.h"
#include "inputs/engram_hash.h"
#include "reprise/engine.h"
#include "reprise/error.h"
#include "runtime/cache_sizes.h"
#include "runtime/engine_checks.h"
#include "runtime/replay_mode.h"
#include "runtime/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace reprise {
namespace {

// Gives a plain struct a keyword constructor: EngineConfig(page_size=16) sets the named fields, the others keep their
// defaults.
template <typename T>
void def_keyword_init(nb::class_<T>& type) {
  type.def("__init__", [](nb::handle_t<T> self, const nb::kwargs& fields) {
    new (nb::inst_ptr<T>(self)) T();
    nb::inst_mark_ready(self);
    for (const auto& [name, value] : fields) nb::setattr(self, name, value);
  });
}

// Any sequence of integers (list, tuple, numpy array); floats and strings are refused rather than rounded or parsed.
std::vector<int32_t> token_ids_from(nb::handle sequence) {
  nb::object items = nb::steal(PySequence_Fast(sequence.ptr(), ""));
  if (!items.is_valid() || PyUnicode_Check(sequence.ptr())) {
    PyErr_Clear();
    REPRISE_REQUIRE(false, "[Request] wanted a sequence of token ids but got ", nb::repr(sequence).c_str());
  }
  std::vector<int32_t> ids;
  ids.reserve(nb::len(items));
  for (nb::handle item : items) {
    const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    if (!index.is_valid()) {
      PyErr_Clear();
      REPRISE_REQUIRE(false, "[Request] wanted integer token ids but got ", nb::repr(item).c_str(), " at position ",
                      ids.size());
    }
    int overflow = 0;
    const int64_t id = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    REPRISE_REQUIRE(
        overflow == 0 && id >= std::numeric_limits<int32_t>::min() && id <= std::numeric_limits<int32_t>::max(),
        "[Request] wanted token ids within the vocabulary but got ", nb::repr(item).c_str(), " at position ",
        ids.size());
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void bind_enums(nb::module_& m) {
  nb::enum_<Dtype>(m, "Dtype", "Arithmetic dtype of weights and activations; kAuto takes the checkpoint's.")
      .value("kAuto", Dtype::kAuto)
      .value("kFloat32", Dtype::kFloat32)
      .value("kBFloat16", Dtype::kBFloat16);
  nb::enum_<CacheDtype>(m, "CacheDtype",
                        "How KV is rounded before it is cached: kAuto = the released formats, kModel = not at all.")
      .value("kAuto", CacheDtype::kAuto)
      .value("kModel", CacheDtype::kModel);
  nb::enum_<ReplayMode>(m, "ReplayMode", "Which prompt rows the replay layers (those past the last KV source) run on.")
      .value("kOff", ReplayMode::kOff)
      .value("kBounded", ReplayMode::kBounded)
      .value("kExact", ReplayMode::kExact)
      .value("kLastRow", ReplayMode::kLastRow)
      .value("kStep", ReplayMode::kStep);
  nb::enum_<PrefixRebuild>(m, "PrefixRebuild",
                           "How window KV below a prefix-cache hit is rebuilt; kAuto follows the replay mode.")
      .value("kAuto", PrefixRebuild::kAuto)
      .value("kExact", PrefixRebuild::kExact)
      .value("kBounded", PrefixRebuild::kBounded);
  nb::enum_<FinishReason>(m, "FinishReason", "Why a request ended; kNone while it runs.")
      .value("kNone", FinishReason::kNone)
      .value("kStop", FinishReason::kStop)
      .value("kLength", FinishReason::kLength)
      .value("kAbort", FinishReason::kAbort)
      .value("kTimeout", FinishReason::kTimeout);
}

void bind_config(nb::module_& m) {
  nb::class_<ModelConfig>(m, "ModelConfig", "Facts of a DeepSeek-V4.1 text backbone, read from config.json.")
      .def_ro("model_type", &ModelConfig::model_type)
      .def_ro("dtype", &ModelConfig::dtype)
      .def_ro("vocab_size", &ModelConfig::vocab_size)
      .def_ro("hidden_size", &ModelConfig::hidden_size)
      .def_ro("num_hidden_layers", &ModelConfig::num_hidden_layers)
      .def_ro("num_attention_heads", &ModelConfig::num_attention_heads)
      .def_ro("head_dim", &ModelConfig::head_dim)
      .def_ro("qk_rope_head_dim", &ModelConfig::qk_rope_head_dim)
      .def_ro("q_lora_rank", &ModelConfig::q_lora_rank)
      .def_ro("o_groups", &ModelConfig::o_groups)
      .def_ro("o_lora_rank", &ModelConfig::o_lora_rank)
      .def_ro("sliding_window", &ModelConfig::sliding_window)
      .def_ro("compress_ratios", &ModelConfig::compress_ratios)
      .def_ro("kv_source_layer_ids", &ModelConfig::kv_source_layer_ids)
      .def_ro("index_source_layer_ids", &ModelConfig::index_source_layer_ids)
      .def_ro("index_n_heads", &ModelConfig::index_n_heads)
      .def_ro("index_head_dim", &ModelConfig::index_head_dim)
      .def_ro("index_topk", &ModelConfig::index_topk)
      .def_ro("candidate_source_layer_id", &ModelConfig::candidate_source_layer_id)
      .def_ro("candidate_topk_blocks", &ModelConfig::candidate_topk_blocks)
      .def_ro("candidate_block_size", &ModelConfig::candidate_block_size)
      .def_ro("rope_theta", &ModelConfig::rope_theta)
      .def_ro("compress_rope_theta", &ModelConfig::compress_rope_theta)
      .def_ro("yarn_factor", &ModelConfig::yarn_factor)
      .def_ro("yarn_original_max_position", &ModelConfig::yarn_original_max_position)
      .def_ro("yarn_beta_fast", &ModelConfig::yarn_beta_fast)
      .def_ro("yarn_beta_slow", &ModelConfig::yarn_beta_slow)
      .def_ro("max_position_embeddings", &ModelConfig::max_position_embeddings)
      .def_ro("rms_norm_eps", &ModelConfig::rms_norm_eps)
      .def_ro("hc_mult", &ModelConfig::hc_mult)
      .def_ro("hc_sinkhorn_iters", &ModelConfig::hc_sinkhorn_iters)
      .def_ro("hc_eps", &ModelConfig::hc_eps)
      .def_ro("n_routed_experts", &ModelConfig::n_routed_experts)
      .def_ro("num_experts_per_tok", &ModelConfig::num_experts_per_tok)
      .def_ro("moe_intermediate_size", &ModelConfig::moe_intermediate_size)
      .def_ro("routed_scaling_factor", &ModelConfig::routed_scaling_factor)
      .def_ro("swiglu_limit", &ModelConfig::swiglu_limit)
      .def_ro("engram_layer_ids", &ModelConfig::engram_layer_ids)
      .def_ro("engram_max_ngram_size", &ModelConfig::engram_max_ngram_size)
      .def_ro("engram_n_heads", &ModelConfig::engram_n_heads)
      .def_ro("engram_head_dim", &ModelConfig::engram_head_dim)
      .def_ro("engram_vocab_size", &ModelConfig::engram_vocab_size)
      .def_ro("engram_compressed_vocab_size", &ModelConfig::engram_compressed_vocab_size)
      .def_ro("engram_pad_token_id", &ModelConfig::engram_pad_token_id)
      .def_ro("engram_num_embeddings", &ModelConfig::engram_num_embeddings)
      .def_ro("eos_token_ids", &ModelConfig::eos_token_ids)
      .def_ro("notices", &ModelConfig::notices)
      .def("num_encoder_layers", &ModelConfig::num_encoder_layers,
           "Layers up to and including the last KV source; 0 when there is none.")
      .def("kv_source_of", &ModelConfig::kv_source_of, "layer"_a,
           "The latest KV source at or before `layer`; -1 when it reads no compressed KV.")
      .def("index_source_of", &ModelConfig::index_source_of, "layer"_a,
           "The latest index source at or before `layer`; -1 when it reads no compressed KV.");
  nb::class_<ModelFacts>(m, "ModelFacts", "What an engine knows of any decoder, whatever its family.")
      .def_ro("model_type", &ModelFacts::model_type)
      .def_ro("vocab_size", &ModelFacts::vocab_size)
      .def_ro("hidden_size", &ModelFacts::hidden_size)
      .def_ro("max_position_embeddings", &ModelFacts::max_position_embeddings, "tokens")
      .def_ro("eos_token_ids", &ModelFacts::eos_token_ids)
      .def_prop_ro("num_layers", &ModelFacts::num_layers)
      .def_ro("num_encoder_layers", &ModelFacts::num_encoder_layers,
              "layers up to and including the last that caches what later layers read");
  m.def(
      "load_model_config",
      [](const std::filesystem::path& checkpoint_dir) { return load_model_config(checkpoint_dir.native()); },
      "checkpoint_dir"_a,
      "Reads and checks CHECKPOINT/config.json. Raises ValueError naming every field that is missing or inconsistent.");

  m.def(
      "engram_table_rows",
      [](const ModelConfig& config, int64_t layer) {
        const auto& ids = config.engram_layer_ids;
        const auto found = std::find(ids.begin(), ids.end(), layer);
        REPRISE_REQUIRE(found != ids.end(), "[engram_table_rows] wanted an Engram layer but got ", layer);
        return make_engram_hashes(make_model_facts(config).engram, 0)[static_cast<size_t>(found - ids.begin())]
            .num_rows();
      },
      "config"_a, "layer"_a, "Rows of an Engram layer's embedding table, the sum of its hash primes.");

  nb::class_<EngineConfig> config(m, "EngineConfig",
                                  "How an engine runs; see engine/include/reprise/config.h for every field.");
  def_keyword_init(config);
  config.def_rw("dtype", &EngineConfig::dtype)
      .def_rw("kv_cache_dtype", &EngineConfig::kv_cache_dtype)
      .def_rw("replay", &EngineConfig::replay)
      .def_rw("max_num_seqs", &EngineConfig::max_num_seqs)
      .def_rw("max_num_batched_tokens", &EngineConfig::max_num_batched_tokens)
      .def_rw("max_model_len", &EngineConfig::max_model_len)
      .def_rw("max_waiting", &EngineConfig::max_waiting)
      .def_rw("page_size", &EngineConfig::page_size)
      .def_rw("kv_cache_memory", &EngineConfig::kv_cache_memory)
      .def_rw("num_threads", &EngineConfig::num_threads)
      .def_rw("enable_prefix_caching", &EngineConfig::enable_prefix_caching)
      .def_rw("prefix_rebuild", &EngineConfig::prefix_rebuild)
      .def_rw("poison_cache", &EngineConfig::poison_cache)
      .def_rw("graph_buckets", &EngineConfig::graph_buckets)
      .def_rw("engram_vocabulary", &EngineConfig::engram_vocabulary)
      .def_rw("on_load_progress", &EngineConfig::on_load_progress, nb::arg("value").none());
}

void bind_request(nb::module_& m) {
  nb::class_<SamplingParams> sampling(m, "SamplingParams", "How tokens are chosen and when a request ends.");
  def_keyword_init(sampling);
  sampling.def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("seed", &SamplingParams::seed, nb::arg("value").none())
      .def_rw("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("logprobs", &SamplingParams::logprobs, nb::arg("value").none())
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs, nb::arg("value").none())
      .def_rw("return_hidden_states", &SamplingParams::return_hidden_states);
  m.def("check_sampling_params", &check_sampling_params, "params"_a, "vocab_size"_a,
        "Raises ValueError for the first field that is NaN, out of range or names a token that does not exist.");

  nb::class_<Request>(m, "Request", "A prompt and how to continue it.")
      .def(
          "__init__",
          [](Request* self, nb::handle prompt_token_ids, const SamplingParams& sampling, int64_t priority,
             std::optional<ReplayMode> replay, double timeout_s) {
            new (self) Request{token_ids_from(prompt_token_ids), sampling, priority, replay, timeout_s};
          },
          "prompt_token_ids"_a, nb::arg("sampling").sig("SamplingParams()") = SamplingParams{}, "priority"_a = 0,
          "replay"_a = nb::none(), "timeout_s"_a = 0.0,
          nb::sig("def __init__(self, prompt_token_ids: collections.abc.Sequence[int], sampling: SamplingParams = ..., "
                  "priority: int = 0, replay: ReplayMode | None = None, timeout_s: float = 0.0) -> None"))
      .def_ro("prompt_token_ids", &Request::prompt_token_ids)
      .def_rw("sampling", &Request::sampling)
      .def_rw("priority", &Request::priority)
      .def_rw("replay", &Request::replay, nb::arg("value").none())
      .def_rw("timeout_s", &Request::timeout_s);

  nb::class_<TokenLogprob>(m, "TokenLogprob",
                           "A token, the natural log of its probability, and its rank (1 = the most likely).")
      .def_ro("token_id", &TokenLogprob::token_id)
      .def_ro("logprob", &TokenLogprob::logprob)
      .def_ro("rank", &TokenLogprob::rank);
  nb::class_<RequestMetrics>(m, "RequestMetrics", "What one request cost; times in seconds from submit.")
      .def_ro("time_to_first_token", &RequestMetrics::time_to_first_token)
      .def_ro("total_time", &RequestMetrics::total_time)
      .def_ro("prompt_rows", &RequestMetrics::prompt_rows)
      .def_ro("cached_rows", &RequestMetrics::cached_rows)
      .def_ro("encoder_rows_run", &RequestMetrics::encoder_rows_run)
      .def_ro("replay_rows_run", &RequestMetrics::replay_rows_run)
      .def_ro("replay_rows_by_layer", &RequestMetrics::replay_rows_by_layer)
      .def_ro("preemptions", &RequestMetrics::preemptions)
      .def_ro("replay_mode", &RequestMetrics::replay_mode)
      .def_ro("replay_reason", &RequestMetrics::replay_reason);
  nb::class_<RequestOutput>(m, "RequestOutput", "What a step brought one request.")
      .def_ro("id", &RequestOutput::id)
      .def_ro("new_token_ids", &RequestOutput::new_token_ids)
      .def_ro("logprobs", &RequestOutput::logprobs)
      .def_ro("prompt_logprobs", &RequestOutput::prompt_logprobs)
      .def_prop_ro(
          "hidden_states",
          [](const RequestOutput& output) {
            return nb::ndarray<nb::numpy, const float, nb::ndim<1>>(output.hidden_states.data(),
                                                                    {output.hidden_states.size()});
          },
          nb::rv_policy::reference_internal, "This step's rows, flat [rows * hidden_size] float32.")
      .def_ro("finished", &RequestOutput::finished)
      .def_ro("finish_reason", &RequestOutput::finish_reason)
      .def_ro("stop_token_id", &RequestOutput::stop_token_id)
      .def_ro("error", &RequestOutput::error)
      .def_ro("metrics", &RequestOutput::metrics);
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_enums(m);
  bind_config(m);
  bind_request(m);

  nb::class_<CacheGroupStats>(m, "CacheGroupStats", "What one cache group takes.")
      .def_ro("name", &CacheGroupStats::name)
      .def_ro("num_pages", &CacheGroupStats::num_pages)
      .def_ro("free_pages", &CacheGroupStats::free_pages)
      .def_ro("page_size", &CacheGroupStats::page_size)
      .def_ro("bytes", &CacheGroupStats::bytes);
  m.def(
      "describe_cache_groups",
      [](const ModelConfig& model, const EngineConfig& config) {
        const ModelFacts facts = make_model_facts(model);
        const EngineConfig engine = check_engine_config(config, facts);
        const auto dtype = resolve_dtype(facts, engine);
        const CacheSizes sizes = choose_cache_sizes(facts, engine, dtype);
        return std::pair(describe_cache_groups(facts, engine, dtype, sizes), sizes.max_model_len);
      },
      "model"_a, "engine"_a,
      "What the caches of such an engine take, and the tokens a request may have: (groups, max_model_len).");
  m.def(
      "decide_replay",
      [](ReplayMode wanted, const ModelConfig& config) {
        ReplayDecision decision = decide_replay(wanted, make_model_facts(config));
        return std::pair(decision.mode, decision.reason);
      },
      "wanted"_a, "config"_a,
      "What a model can do of the mode asked for: (mode, reason), the reason empty when it is that mode.");
  nb::class_<EngineStats>(m, "EngineStats", "Counters and facts of an engine.")
      .def_ro("num_running", &EngineStats::num_running)
      .def_ro("num_waiting", &EngineStats::num_waiting)
      .def_ro("num_finished", &EngineStats::num_finished)
      .def_ro("steps", &EngineStats::steps)
      .def_ro("step_seconds", &EngineStats::step_seconds)
      .def_ro("model_seconds", &EngineStats::model_seconds)
      .def_ro("prompt_rows", &EngineStats::prompt_rows)
      .def_ro("cached_rows", &EngineStats::cached_rows)
      .def_ro("encoder_rows_run", &EngineStats::encoder_rows_run)
      .def_ro("replay_rows_run", &EngineStats::replay_rows_run)
      .def_ro("replay_rows_by_layer", &EngineStats::replay_rows_by_layer)
      .def_ro("generated_tokens", &EngineStats::generated_tokens)
      .def_ro("preemptions", &EngineStats::preemptions)
      .def_ro("replay_mode", &EngineStats::replay_mode)
      .def_ro("replay_reason", &EngineStats::replay_reason)
      .def_ro("num_encoder_layers", &EngineStats::num_encoder_layers)
      .def_ro("num_replay_layers", &EngineStats::num_replay_layers)
      .def_ro("weight_bytes", &EngineStats::weight_bytes)
      .def_ro("load_notice", &EngineStats::load_notice)
      .def_ro("max_model_len", &EngineStats::max_model_len)
      .def_ro("cache_groups", &EngineStats::cache_groups);

  // The engine runs without the GIL; a load progress callback takes it back for its own duration.
  using release_gil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Engine>(m, "Engine",
                     "A checkpoint, its caches and its scheduler. step() runs on one thread at a time; "
                     "submit, abort and stats may be called from any thread at any time.")
      .def_static(
          "load",
          [](const std::filesystem::path& checkpoint_dir, EngineConfig config) {
            return Engine::load(checkpoint_dir.native(), std::move(config));
          },
          "checkpoint_dir"_a, nb::arg("config").sig("EngineConfig()") = EngineConfig{}, release_gil(),
          "Loads a Hugging Face folder. Raises ValueError that says what is wrong with it.")
      .def("submit", &Engine::submit, "request"_a, release_gil(),
           "Queues a request and returns its id. Raises ValueError for one that cannot be served; nothing else is "
           "affected.")
      .def("abort", &Engine::abort, "id"_a, release_gil(),
           "Ends a request wherever it is; its last output comes from the next step(). False when there is no such "
           "unfinished request.")
      .def("abort_all", &Engine::abort_all, release_gil(), "Ends every unfinished request; returns how many.")
      .def("step", &Engine::step, release_gil(),
           "Runs one step and returns what it brought; at once when there is nothing to run.")
      .def("has_unfinished", &Engine::has_unfinished, release_gil())
      .def("stats", &Engine::stats, release_gil())
      .def("model_facts", &Engine::model_facts, nb::rv_policy::reference_internal)
      .def("config", &Engine::config, nb::rv_policy::reference_internal);
}

}  // namespace reprise
