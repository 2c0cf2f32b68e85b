#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace reprise {

// Arithmetic dtype of weights and activations; kAuto takes the checkpoint's.
enum class Dtype { kAuto, kFloat32, kBFloat16 };

// How KV is rounded before it is cached: kAuto = the released formats (fp8, mxfp4, nvfp4), kModel = not at all.
enum class CacheDtype { kAuto, kModel };

// Which prompt rows the replay layers (those past the last KV source) run on.
//   kOff      every row.
//   kBounded  the prompt's last `window` rows, reading window KV of those rows only (an approximation).
//   kExact    the halo of rows that the last row depends on; equal to kOff.
//   kLastRow  the prompt's last row; exact for families whose replay layers own no KV.
//   kStep     each step's last `window` rows, for parity with engines that trim by step.
enum class ReplayMode { kOff, kBounded, kExact, kLastRow, kStep };

// How window KV below a prefix-cache hit is rebuilt.
//   kExact    so that the result equals a run without the hit, in every replay mode.
//   kBounded  from the hit's last `window` rows alone: cheaper and an approximation, whatever the replay mode computes.
//             It must be asked for; only requests under bounded replay take such hits.
//   kAuto     kExact.
enum class PrefixRebuild { kAuto, kExact, kBounded };

// Facts of a DeepSeek-V4.1 text backbone, read from config.json (its text_config where nested).
struct ModelConfig {
  std::string model_type;          // of the text backbone
  Dtype dtype = Dtype::kBFloat16;  // the checkpoint's own
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // H
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;  // N
  int64_t head_dim = 0;             // D
  int64_t qk_rope_head_dim = 0;     // R
  int64_t q_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t o_lora_rank = 0;
  int64_t sliding_window = 0;                   // W
  std::vector<int64_t> compress_ratios;         // [num_hidden_layers]; 0 = window attention only
  std::vector<int64_t> kv_source_layer_ids;     // layers that publish compressed KV and index keys
  std::vector<int64_t> index_source_layer_ids;  // layers that select compressed positions
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = -1;  // -1 = no hierarchical candidates
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;  // compressed positions per block
  double rope_theta = 0;             // layers with ratio 0
  double compress_rope_theta = 0;    // layers with ratio > 0 (YaRN frequencies)
  double yarn_factor = 1;
  double yarn_original_max_position = 0;
  double yarn_beta_fast = 32;
  double yarn_beta_slow = 1;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  int64_t hc_mult = 0;  // S residual streams
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  double routed_scaling_factor = 1;
  double swiglu_limit = 0;
  std::vector<int64_t> engram_layer_ids;  // empty = no Engram
  int64_t engram_max_ngram_size = 0;
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int64_t engram_vocab_size = 0;
  int64_t engram_compressed_vocab_size = 0;
  int64_t engram_pad_token_id = 0;
  std::vector<int64_t> engram_num_embeddings;  // rows of each layer's table; empty = not said
  std::vector<int64_t> eos_token_ids;          // of config.json and generation_config.json
  std::vector<std::string> notices;            // what the files say that is passed over, for the front end to show

  // Layers up to and including the last KV source; 0 when there is none.
  int64_t num_encoder_layers() const { return kv_source_layer_ids.empty() ? 0 : kv_source_layer_ids.back() + 1; }
  // The latest KV source at or before `layer`; -1 when the layer reads no compressed KV.
  int64_t kv_source_of(int64_t layer) const;
  // The latest index source at or before `layer`; -1 when the layer reads no compressed KV.
  int64_t index_source_of(int64_t layer) const;
};

// Reads and checks CHECKPOINT/config.json, and the ids that end a text from generation_config.json where there is one.
// Throws std::invalid_argument naming every field that is missing, inconsistent or asks for what the engine does not
// do.
ModelConfig load_model_config(const std::string& checkpoint_dir);

struct EngineConfig {
  Dtype dtype = Dtype::kAuto;
  CacheDtype kv_cache_dtype = CacheDtype::kAuto;
  ReplayMode replay = ReplayMode::kBounded;
  int64_t max_num_seqs = 64;              // requests running at once
  int64_t max_num_batched_tokens = 2048;  // rows per step
  int64_t max_model_len =
      0;  // prompt + generated tokens; 0 = max_position_embeddings, or what the caches hold if that is less
  int64_t max_waiting = 0;  // waiting requests before submit refuses; 0 = no limit
  int64_t page_size = 64;   // tokens per cache page; a multiple of every compress ratio
  int64_t kv_cache_memory =
      0;  // bytes for all caches; 0 = a share of the free memory, no more than max_num_seqs requests can use
  int64_t num_threads = 0;  // 0 = leave the process-wide torch setting
  bool enable_prefix_caching = false;
  PrefixRebuild prefix_rebuild = PrefixRebuild::kAuto;
  std::vector<int64_t>
      graph_buckets;          // row counts, ascending, that captured graphs exist for: a step (or its replay layers)
                              // of no more rows runs padded to the next one, with the same results; empty = no graphs.
                              // Each keeps memory of its own for the results of such a step, logits included
  bool poison_cache = false;  // fill cache memory with NaN at start and on release, to show reads of cells nobody wrote
  std::vector<int32_t> engram_vocabulary;  // [vocab_size] token id -> compressed id; empty = read from the checkpoint
                                           // folder (`reprise prepare`)
  std::function<void(int64_t done, int64_t total)> on_load_progress;  // bytes of weights
};

}  // namespace reprise
