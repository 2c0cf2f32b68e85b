#include "models/config_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace reprise {
namespace {

using nlohmann::json;

struct Field {
  std::string_view name;
  enum Use { kRead, kIgnored, kOnly } use;
  std::string_view detail;  // kIgnored: why; kOnly: the values that the engine stands at, as a JSON list
};

constexpr auto kRead = Field::kRead;
constexpr auto kIgnored = Field::kIgnored;
constexpr auto kOnly = Field::kOnly;

constexpr std::string_view kTraining = "concerns training only";
constexpr std::string_view kPython = "concerns the Python classes of another library";
constexpr std::string_view kDrafter = "the drafter is not run";
constexpr std::string_view kVision = "only text is run";
constexpr std::string_view kTokenizer = "the tokenizer's files say it";
constexpr std::string_view kOldDefaults = "defaults of sampling stand in generation_config.json";

// What any config of the transformers library may hold.
constexpr Field kAnyConfig[] = {
    {"add_cross_attention", kOnly, "[false]"},
    {"architectures", kIgnored, kPython},
    {"attn_implementation", kIgnored, kPython},
    {"auto_map", kIgnored, "code that comes with a checkpoint is never run"},
    {"begin_suppress_tokens", kIgnored, kOldDefaults},
    {"bos_token_id", kIgnored, kTokenizer},
    {"chunk_size_feed_forward", kIgnored, kPython},
    {"cross_attention_hidden_size", kIgnored, kPython},
    {"decoder_start_token_id", kIgnored, kPython},
    {"do_sample", kIgnored, kOldDefaults},
    {"dtype", kRead, ""},
    {"eos_token_id", kRead, ""},
    {"experts_implementation", kIgnored, kPython},
    {"finetuning_task", kIgnored, kTraining},
    {"id2label", kIgnored, kPython},
    {"is_decoder", kIgnored, kPython},
    {"is_encoder_decoder", kOnly, "[false]"},
    {"label2id", kIgnored, kPython},
    {"max_length", kIgnored, kOldDefaults},
    {"min_length", kIgnored, kOldDefaults},
    {"model_type", kRead, ""},
    {"num_labels", kIgnored, kPython},
    {"output_attentions", kIgnored, kPython},
    {"output_hidden_states", kIgnored, kPython},
    {"output_router_logits", kIgnored, kTraining},
    {"pad_token_id", kIgnored, "rows are never padded with tokens"},
    {"prefix", kIgnored, kPython},
    {"problem_type", kIgnored, kPython},
    {"pruned_heads", kOnly, "[{}]"},
    {"quantization_config", kRead, ""},
    {"repetition_penalty", kIgnored, kOldDefaults},
    {"return_dict", kIgnored, kPython},
    {"sep_token_id", kIgnored, kTokenizer},
    {"suppress_tokens", kIgnored, kOldDefaults},
    {"task_specific_params", kIgnored, kPython},
    {"temperature", kIgnored, kOldDefaults},
    {"tie_encoder_decoder", kOnly, "[false]"},
    {"tie_word_embeddings", kOnly, "[false]"},
    {"tokenizer_class", kIgnored, kTokenizer},
    {"top_k", kIgnored, kOldDefaults},
    {"top_p", kIgnored, kOldDefaults},
    {"torch_dtype", kRead, ""},
    {"torchscript", kIgnored, kPython},
    {"transformers_version", kIgnored, kPython},
    {"unsloth_fixed", kIgnored, kTraining},
    {"unsloth_version", kIgnored, kTraining},
    {"use_cache", kIgnored, kPython},
    {"use_return_dict", kIgnored, kPython},
};

constexpr Field kModelFields[] = {
    {"image_token_id", kIgnored, kVision},
    {"text_config", kRead, ""},
    {"vision_config", kIgnored, kVision},
};

// The text backbone's own. The value of a kOnly field that is absent is the one it is held to.
constexpr Field kTextFields[] = {
    {"attention_bias", kOnly, "[false]"},
    {"attention_dropout", kIgnored, kTraining},
    {"aux_loss_alpha", kIgnored, kTraining},
    {"candidate_block_size", kRead, ""},
    {"candidate_source_layer_id", kRead, ""},
    {"candidate_topk_blocks", kRead, ""},
    {"compress_ratios", kRead, ""},
    {"compress_rope_theta", kRead, ""},
    {"dspark_block_size", kIgnored, kDrafter},
    {"dspark_markov_rank", kIgnored, kDrafter},
    {"dspark_n_routed_experts", kIgnored, kDrafter},
    {"dspark_noise_token_id", kIgnored, kDrafter},
    {"dspark_num_experts_per_tok", kIgnored, kDrafter},
    {"dspark_target_layer_ids", kIgnored, kDrafter},
    {"engram_compressed_vocab_size", kRead, ""},
    {"engram_head_dim", kRead, ""},
    {"engram_layer_ids", kRead, ""},
    {"engram_max_ngram_size", kRead, ""},
    {"engram_n_heads", kRead, ""},
    {"engram_num_embeddings", kRead, ""},
    {"engram_pad_id", kRead, ""},
    {"engram_pad_token_id", kRead, ""},
    {"engram_vocab_size", kRead, ""},
    {"ep_size", kIgnored, "concerns how a model is spread over machines"},
    {"expert_dtype", kIgnored, "the weights' dtypes say it"},
    {"first_k_dense_replace", kOnly, "[0]"},
    {"gate_temp", kOnly, "[1]"},
    {"hc_eps", kRead, ""},
    {"hc_mult", kRead, ""},
    {"hc_pre_from_prev_sublayer", kOnly, "[true]"},
    {"hc_sinkhorn_iters", kRead, ""},
    {"head_dim", kRead, ""},
    {"hidden_act", kOnly, "[\"silu\"]"},
    {"hidden_size", kRead, ""},
    {"image_token_id", kIgnored, kVision},
    {"index_head_dim", kRead, ""},
    {"index_n_heads", kRead, ""},
    {"index_source_layer_ids", kRead, ""},
    {"index_topk", kRead, ""},
    {"initializer_range", kIgnored, kTraining},
    {"intermediate_size", kIgnored, "of dense layers, of which there are none"},
    {"is_causal", kOnly, "[true]"},
    {"kv_source_layer_ids", kRead, ""},
    {"layer_types", kIgnored, "restates kv_source_layer_ids"},
    {"max_position_embeddings", kRead, ""},
    {"mlp_bias", kOnly, "[false]"},
    {"mlp_layer_types", kRead, ""},
    {"moe_intermediate_size", kRead, ""},
    {"moe_layer_freq", kOnly, "[1]"},
    {"n_group", kOnly, "[0, 1]"},
    {"n_hash_layers", kOnly, "[0]"},
    {"n_routed_experts", kRead, ""},
    {"n_shared_experts", kOnly, "[1]"},
    {"norm_topk_prob", kOnly, "[true]"},
    {"num_attention_heads", kRead, ""},
    {"num_experts_per_tok", kRead, ""},
    {"num_hash_layers", kOnly, "[0]"},
    {"num_hidden_layers", kRead, ""},
    {"num_key_value_heads", kOnly, "[1]"},
    {"num_local_experts", kRead, ""},
    {"num_nextn_predict_layers", kRead, ""},
    {"o_groups", kRead, ""},
    {"o_lora_rank", kRead, ""},
    {"partial_rotary_factor", kRead, ""},
    {"pretraining_tp", kIgnored, kTraining},
    {"q_head_norm", kOnly, "[false]"},
    {"q_lora_rank", kRead, ""},
    {"qk_rope_head_dim", kRead, ""},
    {"rms_norm_eps", kRead, ""},
    {"rope_interleave", kOnly, "[true]"},
    {"rope_parameters", kRead, ""},
    {"rope_scaling", kRead, ""},
    {"rope_theta", kRead, ""},
    {"routed_scaling_factor", kRead, ""},
    {"router_aux_loss_coef", kIgnored, kTraining},
    {"router_jitter_noise", kIgnored, kTraining},
    {"scoring_func", kOnly, "[\"sqrtsoftplus\"]"},
    {"seq_aux", kIgnored, kTraining},
    {"sliding_window", kRead, ""},
    {"swiglu_limit", kRead, ""},
    {"topk_group", kOnly, "[0, 1]"},
    {"topk_method", kOnly, "[\"noaux_tc\"]"},
    {"vocab_size", kRead, ""},
};

constexpr Field kRopeFields[] = {
    {"attention_factor", kOnly, "[1]"},
    {"beta_fast", kRead, ""},
    {"beta_slow", kRead, ""},
    {"factor", kRead, ""},
    {"mscale", kOnly, "[0]"},
    {"mscale_all_dim", kOnly, "[0]"},
    {"original_max_position_embeddings", kRead, ""},
    {"partial_rotary_factor", kRead, ""},
    {"rope_theta", kRead, ""},
    {"rope_type", kRead, ""},
    {"truncate", kOnly, "[true]"},
    {"type", kRead, ""},
};

constexpr std::string_view kByDtype = "what is quantized shows in the weights' dtypes and scales";

constexpr Field kQuantizationFields[] = {
    {"activation_scheme", kIgnored, "activations are not quantized"},
    {"dequantize", kIgnored, "weights always are"},
    {"expert_dtype", kOnly, "[\"fp4\", \"fp8\"]"},
    {"fmt", kOnly, "[\"e4m3\"]"},
    {"ignored_layers", kIgnored, kByDtype},
    {"modules_to_not_convert", kIgnored, kByDtype},
    {"quant_method", kOnly, "[\"fp8\"]"},
    {"scale_fmt", kOnly, "[\"ue8m0\"]"},
    {"weight_block_size", kOnly, "[[32, 32]]"},
};

// A kOnly field here is not refused, since it concerns no logit: what it asks for is said not to be applied.
constexpr Field kGenerationFields[] = {
    {"assistant_confidence_threshold", kIgnored, kDrafter},
    {"assistant_early_exit", kIgnored, kDrafter},
    {"assistant_lookbehind", kIgnored, kDrafter},
    {"bad_words_ids", kOnly, "[[]]"},
    {"begin_suppress_tokens", kOnly, "[[]]"},
    {"bos_token_id", kIgnored, kTokenizer},
    {"cache_config", kIgnored, kPython},
    {"cache_implementation", kIgnored, kPython},
    {"constraints", kOnly, "[[]]"},
    {"decoder_start_token_id", kIgnored, kPython},
    {"disable_compile", kIgnored, kPython},
    {"diversity_penalty", kOnly, "[0]"},
    {"do_sample", kRead, ""},
    {"dola_layers", kOnly, "[[]]"},
    {"early_stopping", kIgnored, "concerns beams, of which there are none"},
    {"encoder_no_repeat_ngram_size", kOnly, "[0]"},
    {"encoder_repetition_penalty", kOnly, "[1]"},
    {"eos_token_id", kRead, ""},
    {"epsilon_cutoff", kOnly, "[0]"},
    {"eta_cutoff", kOnly, "[0]"},
    {"exponential_decay_length_penalty", kOnly, "[[]]"},
    {"force_words_ids", kOnly, "[[]]"},
    {"forced_bos_token_id", kOnly, "[]"},
    {"forced_eos_token_id", kOnly, "[]"},
    {"frequency_penalty", kOnly, "[0]"},
    {"guidance_scale", kOnly, "[0, 1]"},
    {"is_assistant", kIgnored, kDrafter},
    {"length_penalty", kIgnored, "concerns beams, of which there are none"},
    {"low_memory", kIgnored, kPython},
    {"max_length", kIgnored, "the engine's max_model_len bounds a request"},
    {"max_new_tokens", kRead, ""},
    {"max_time", kOnly, "[]"},
    {"min_length", kOnly, "[0]"},
    {"min_new_tokens", kOnly, "[0]"},
    {"min_p", kRead, ""},
    {"no_repeat_ngram_size", kOnly, "[0]"},
    {"num_assistant_tokens", kIgnored, kDrafter},
    {"num_assistant_tokens_schedule", kIgnored, kDrafter},
    {"num_beam_groups", kOnly, "[1]"},
    {"num_beams", kOnly, "[1]"},
    {"num_return_sequences", kOnly, "[1]"},
    {"output_attentions", kIgnored, kPython},
    {"output_hidden_states", kIgnored, kPython},
    {"output_logits", kIgnored, kPython},
    {"output_scores", kIgnored, kPython},
    {"pad_token_id", kIgnored, "rows are never padded with tokens"},
    {"penalty_alpha", kOnly, "[0]"},
    {"prefill_chunk_size", kIgnored, kPython},
    {"presence_penalty", kOnly, "[0]"},
    {"prompt_lookup_num_tokens", kIgnored, kDrafter},
    {"remove_invalid_values", kIgnored, kPython},
    {"renormalize_logits", kIgnored, kPython},
    {"repetition_penalty", kOnly, "[1]"},
    {"return_dict_in_generate", kIgnored, kPython},
    {"return_legacy_cache", kIgnored, kPython},
    {"sequence_bias", kOnly, "[[], {}]"},
    {"stop_strings", kRead, ""},
    {"suppress_tokens", kOnly, "[[]]"},
    {"target_lookbehind", kIgnored, kDrafter},
    {"temperature", kRead, ""},
    {"token_healing", kOnly, "[false]"},
    {"top_h", kOnly, "[]"},
    {"top_k", kRead, ""},
    {"top_p", kRead, ""},
    {"transformers_version", kIgnored, kPython},
    {"typical_p", kOnly, "[1]"},
    {"use_cache", kIgnored, kPython},
    {"watermarking_config", kOnly, "[]"},
};

std::vector<std::span<const Field>> fields_of(ConfigSection section) {
  switch (section) {
    case ConfigSection::kModel:
      return {kModelFields, kAnyConfig};
    case ConfigSection::kText:
      return {kTextFields, kAnyConfig};
    case ConfigSection::kRope:
      return {kRopeFields};
    case ConfigSection::kQuantization:
      return {kQuantizationFields};
    case ConfigSection::kGeneration:
      return {kGenerationFields};
  }
  return {};
}

const Field* find_field(ConfigSection section, std::string_view name) {
  for (const auto fields : fields_of(section)) {
    const auto found =
        std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == name; });
    if (found != fields.end()) return &*found;
  }
  return nullptr;
}

}  // namespace

void check_fields(const json& object, ConfigSection section, const std::string& path, ConfigProblems& problems,
                  std::vector<std::string>& unknown) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || name.starts_with('_')) continue;
    const Field* field = find_field(section, name);
    if (field == nullptr) {
      unknown.push_back(path + name);
    } else if (field->use == kOnly) {
      const json values = json::parse(field->detail);
      if (std::find(values.begin(), values.end(), value) != values.end()) continue;
      std::string wanted;
      for (const auto& one : values) wanted += (wanted.empty() ? "" : " or ") + one.dump();
      problems.add(path + name, "wanted ", wanted.empty() ? "none" : wanted, " (the only one supported) but got ",
                   value.dump());
    }
  }
}

}  // namespace reprise
