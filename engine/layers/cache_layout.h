#pragma once

#include <cstdint>

// Where the layers of DeepSeek-V4.1 find what make_model_facts() declares.
namespace reprise {

// Cache groups.
inline constexpr int32_t kWindowGroup = 0;
inline constexpr int32_t kCompressedGroup = 1;  // where layers publish

// Kinds of cells.
inline constexpr int32_t kWindowKv = 0;      // of every layer
inline constexpr int32_t kCompressedKv = 1;  // of KV sources
inline constexpr int32_t kIndexKeys = 2;

// Kinds of state.
inline constexpr int32_t kPartialGroups = 0;  // [ratio, 2, D] of a KV source that compresses

// Rotary embeddings.
inline constexpr int32_t kWindowRope = 0;      // rope_theta: layers that read no compressed KV
inline constexpr int32_t kCompressedRope = 1;  // compress_rope_theta with YaRN

// Entries of ModelFacts::cells: the window's first, then one per distinct ratio of the KV sources, ascending.
inline constexpr size_t kWindowCells = 0;

}  // namespace reprise
