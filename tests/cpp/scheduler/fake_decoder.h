#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "../decoder_facts.h"
#include "reprise/step_plan.h"
#include "scheduler/replay_plan.h"

namespace reprise::testing {

// A decoder whose activations are 64-bit hashes. A row's output hashes everything it depends on (its input, the window
// keys and the compressed keys it sees), so one row too few, a stale cell or a foreign page changes every value after
// it.

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15ull ^ (b + 0x7F4A7C15F39CC060ull + (a << 6) + (a >> 2));
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 29;
  return x;
}

struct FakeModel {
  ModelFacts facts;
  std::vector<int64_t> ratios;   // [num_layers]; 0 = window only
  std::vector<int64_t> sources;  // layers that publish compressed keys
  int64_t vocab = 50;

  // Sources in the first layers, the last of them at num_encoder_layers - 1 with ratio 1, those before it with ratio 2.
  static FakeModel make(int64_t num_layers, int64_t num_encoder_layers, int64_t window) {
    FakeModel model;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      const bool source = layer == num_encoder_layers - 1 || (layer >= 1 && layer < num_encoder_layers);
      if (source) model.sources.push_back(layer);
      model.ratios.push_back(layer < 1 && !source ? 0 : layer < num_encoder_layers - 1 ? 2 : 1);
    }
    model.facts = make_facts(num_layers, num_encoder_layers, window, true,
                             *std::max_element(model.ratios.begin(), model.ratios.end()));
    return model;
  }
  int64_t source_of(int64_t layer) const {  // -1: reads no compressed keys
    int64_t found = -1;
    for (int64_t source : sources) found = source <= layer ? source : found;
    return found;
  }
  bool is_source(int64_t layer) const { return std::find(sources.begin(), sources.end(), layer) != sources.end(); }
  uint64_t embed(std::span<const int32_t> tokens, int64_t p) const {  // looks two tokens back, as the Engram hash does
    uint64_t value = 7;
    for (int64_t q = std::max<int64_t>(p - 2, 0); q <= p; ++q) value = mix(value, static_cast<uint64_t>(tokens[q]));
    return value;
  }
  int32_t sample(uint64_t value) const { return static_cast<int32_t>(value % static_cast<uint64_t>(vocab)); }
};

inline uint64_t window_key(uint64_t input, int64_t layer, int64_t p) { return mix(mix(input, 1000 + layer), p); }
inline uint64_t compressed_part(uint64_t input, int64_t layer) { return mix(input, 2000 + layer); }

// Compressed keys that a request found in the cache: `hit` tokens of them, and what a bounded rebuild leaves out below.
struct AdoptedPrefix {
  int64_t hit = 0;
  int64_t first_row = 0;                          // rows below it do not run
  std::vector<std::vector<uint64_t>> compressed;  // [layer][group position]
};

// The model without caches or chunks: one request, row by row, every layer. `window_floors` [num_layers] as in a row
// plan.
class ReferenceDecoder {
 public:
  ReferenceDecoder(const FakeModel& model, std::vector<int64_t> window_floors = {}, AdoptedPrefix prefix = {})
      : model_(model), floors_(std::move(window_floors)), prefix_(std::move(prefix)) {
    floors_.resize(static_cast<size_t>(model.facts.num_layers()), 0);
    keys_.resize(floors_.size());
    outputs_.resize(floors_.size());
    compressed_sums_.resize(floors_.size());
    parts_.resize(floors_.size());
  }
  // Runs rows up to the end of `tokens`.
  void extend(std::span<const int32_t> tokens) {
    for (int64_t p = num_rows(); p < static_cast<int64_t>(tokens.size()); ++p) {
      uint64_t x = model_.embed(tokens, p);
      for (size_t layer = 0; layer < floors_.size(); ++layer) x = run_row(layer, p, x);
    }
  }
  int64_t num_rows() const { return static_cast<int64_t>(outputs_.back().size()); }
  uint64_t output(int64_t layer, int64_t p) const {
    return outputs_[static_cast<size_t>(layer)][static_cast<size_t>(p)];
  }
  uint64_t last() const { return outputs_.back().back(); }

 private:
  uint64_t run_row(size_t layer, int64_t p, uint64_t x) {
    const auto l = static_cast<int64_t>(layer);
    const bool runs = p >= prefix_.first_row;
    keys_[layer].push_back(runs ? window_key(x, l, p) : 0);
    if (model_.is_source(l)) {
      const int64_t ratio = model_.ratios[layer];
      parts_[layer].push_back(compressed_part(x, l));
      auto& sums = compressed_sums_[layer];
      if (p % ratio == ratio - 1) {
        uint64_t value = 3;
        for (int64_t j = ratio - 1; j >= 0; --j) value = mix(value, parts_[layer][static_cast<size_t>(p - j)]);
        if (p < prefix_.hit) value = prefix_.compressed[layer][static_cast<size_t>(p / ratio)];
        sums.push_back((sums.empty() ? 0 : sums.back()) + mix(value, static_cast<uint64_t>(p / ratio)));
      }
    }
    if (!runs) {
      outputs_[layer].push_back(0);
      return 0;
    }
    uint64_t seen = 0;
    for (int64_t q = std::max({p - model_.facts.window() + 1, floors_[layer], int64_t{0}}); q <= p; ++q) {
      seen += keys_[layer][static_cast<size_t>(q)];
    }
    const int64_t source = model_.source_of(l);
    if (source >= 0) {
      const int64_t visible = (p + 1) / model_.ratios[static_cast<size_t>(source)];
      if (visible > 0)
        seen = mix(seen, compressed_sums_[static_cast<size_t>(source)][static_cast<size_t>(visible - 1)]);
    }
    const uint64_t out = mix(mix(x, seen), 5000 + layer);
    outputs_[layer].push_back(out);
    return out;
  }

  const FakeModel& model_;
  std::vector<int64_t> floors_;
  AdoptedPrefix prefix_;
  std::vector<std::vector<uint64_t>> keys_, outputs_, compressed_sums_, parts_;
};

// The model on paged caches, as a step plan says. Every cell remembers which prefix of tokens it was written for;
// reading a cell that nobody wrote since its page was handed out, or that belongs to other tokens, is a test failure.
class PagedDecoder {
 public:
  struct Row {
    RequestId id;
    int64_t layer;
    int64_t position;
    uint64_t output;
  };

  PagedDecoder(const FakeModel& model, int64_t page_size, int64_t num_window_pages, int64_t num_compressed_pages,
               int64_t max_num_seqs)
      : model_(model), page_size_(page_size) {
    const auto layers = static_cast<size_t>(model.facts.num_layers());
    cells_[0].assign(layers, std::vector<Cell>(static_cast<size_t>(num_window_pages * page_size)));
    cells_[1].assign(layers, std::vector<Cell>(static_cast<size_t>(num_compressed_pages * page_size)));
    for (auto& tables : tables_) tables.resize(static_cast<size_t>(max_num_seqs));
    partial_.assign(static_cast<size_t>(max_num_seqs), std::vector<std::map<int64_t, Cell>>(layers));
  }

  // Runs the step; returns each sequence's last row after the last layer (0 when it was not computed).
  std::vector<uint64_t> run(const StepPlan& plan) {
    computed.clear();
    apply_updates(plan);
    std::vector<std::vector<uint64_t>> inputs;
    std::vector<std::vector<uint64_t>> tags;
    int64_t rows = 0;
    for (const ScheduledSequence& s : plan.sequences) {
      std::vector<uint64_t> x;
      for (int64_t p = s.start; p < s.start + s.num_rows; ++p) x.push_back(model_.embed(s.tokens, p));
      inputs.push_back(std::move(x));
      std::vector<uint64_t> tag;
      uint64_t hash = 11;
      for (int32_t token : s.tokens) tag.push_back(hash = mix(hash, static_cast<uint64_t>(token)));
      tags.push_back(std::move(tag));
      rows += s.num_rows;
    }
    EXPECT_EQ(rows, plan.num_rows);
    for (int64_t layer = 0; layer < model_.facts.num_layers(); ++layer) {
      for (size_t i = 0; i < plan.sequences.size(); ++i) receive(plan.sequences[i], layer, inputs[i], tags[i]);
      for (size_t i = 0; i < plan.sequences.size(); ++i) compute(plan.sequences[i], layer, inputs[i], tags[i]);
    }
    std::vector<uint64_t> last;
    for (const auto& x : inputs) last.push_back(x.back());
    return last;
  }

  std::vector<Row> computed;  // of the last step

  // Before the step runs: the compressed keys of the first `hit` tokens that a sequence of the plan took from the
  // cache.
  AdoptedPrefix adopted(const StepPlan& plan, const ScheduledSequence& s) {
    AdoptedPrefix prefix{s.publish_from, s.start, {}};
    prefix.compressed.resize(static_cast<size_t>(model_.facts.num_layers()));
    std::vector<int32_t> pages;
    for (const BlockTableUpdate& update : plan.block_table_updates) {
      if (update.group != kCompressed || update.state_slot != s.state_slot) continue;
      if (pages.size() <= static_cast<size_t>(update.index)) pages.resize(static_cast<size_t>(update.index) + 1);
      pages[static_cast<size_t>(update.index)] = update.page;
    }
    for (int64_t source : model_.sources) {
      const int64_t per_page = page_size_ / model_.ratios[static_cast<size_t>(source)];
      for (int64_t c = 0; c < s.publish_from / page_size_ * per_page; ++c) {
        const int64_t at = pages[static_cast<size_t>(c / per_page)] * page_size_ + c % per_page;
        prefix.compressed[static_cast<size_t>(source)].push_back(
            cells_[1][static_cast<size_t>(source)][static_cast<size_t>(at)].value);
      }
    }
    return prefix;
  }

 private:
  struct Cell {
    uint64_t value = 0;
    uint64_t tag = 0;  // hash of the tokens up to this position; 0 = nobody wrote it
  };
  static constexpr uint64_t kAbsent = 0;  // input of a row that an earlier layer did not compute

  static LayerRows rows_of(const ScheduledSequence& s, int64_t layer) {
    return s.row_plan == nullptr ? LayerRows{} : s.row_plan->layers[static_cast<size_t>(layer)];
  }

  void apply_updates(const StepPlan& plan) {
    for (const BlockTableUpdate& update : plan.block_table_updates) {
      ASSERT_NE(update.page, kPadPage);
      const auto group = static_cast<size_t>(update.group);
      auto& table = tables_[group][static_cast<size_t>(update.state_slot)];
      if (table.size() <= static_cast<size_t>(update.index))
        table.resize(static_cast<size_t>(update.index) + 1, kPadPage);
      table[static_cast<size_t>(update.index)] = update.page;
      const bool adopted = update.group == kCompressed &&
                           std::any_of(plan.sequences.begin(), plan.sequences.end(), [&](const ScheduledSequence& s) {
                             return s.state_slot == update.state_slot && update.index * page_size_ < s.publish_from;
                           });
      if (adopted) continue;
      for (auto& layer : cells_[group]) {
        for (int64_t offset = 0; offset < page_size_; ++offset)
          layer[static_cast<size_t>(update.page * page_size_ + offset)] = {};
      }
    }
  }

  // The cell of position p (compressed: of group position c = p / ratio; `per_page` positions a page).
  Cell& cell(int32_t group, int64_t layer, const ScheduledSequence& s, int64_t index, int64_t per_page) {
    static Cell nowhere;
    const auto& table = tables_[static_cast<size_t>(group)][static_cast<size_t>(s.state_slot)];
    const auto entry = static_cast<size_t>(index / per_page);
    if (entry >= table.size() || table[entry] == kPadPage) {
      ADD_FAILURE() << "request " << s.id << " has no page for index " << index << " of group " << group;
      return nowhere = {};
    }
    return cells_[static_cast<size_t>(group)][static_cast<size_t>(layer)]
                 [static_cast<size_t>(table[entry] * page_size_ + index % per_page)];
  }

  void receive(const ScheduledSequence& s, int64_t layer, const std::vector<uint64_t>& x,
               const std::vector<uint64_t>& tags) {
    const LayerRows rows = rows_of(s, layer);
    EXPECT_LE(rows.first_received, rows.first_computed);
    for (int64_t p = std::max(s.start, rows.first_received); p < s.start + s.num_rows; ++p) {
      const uint64_t input = x[static_cast<size_t>(p - s.start)];
      const uint64_t tag = tags[static_cast<size_t>(p)];
      EXPECT_NE(input, kAbsent) << "layer " << layer << " receives row " << p << " that no layer before it computed";
      cell(kWindow, layer, s, p, page_size_) = {window_key(input, layer, p), tag};
      if (!model_.is_source(layer)) continue;
      const int64_t ratio = model_.ratios[static_cast<size_t>(layer)];
      auto& partial = partial_[static_cast<size_t>(s.state_slot)][static_cast<size_t>(layer)];
      partial[p % ratio] = {compressed_part(input, layer), tag};
      if (p % ratio != ratio - 1 || p < s.publish_from) continue;
      uint64_t value = 3;
      for (int64_t j = ratio - 1; j >= 0; --j) {
        const Cell& part = partial[(p - j) % ratio];
        EXPECT_EQ(part.tag, tags[static_cast<size_t>(p - j)]) << "stale partial state at row " << p - j;
        value = mix(value, part.value);
      }
      Cell& key = cell(kCompressed, layer, s, p / ratio, page_size_ / ratio);
      EXPECT_EQ(key.tag, 0u) << "request " << s.id << " overwrites compressed key " << p / ratio
                             << ", which others may share";
      key = {value, tag};
    }
  }

  void compute(const ScheduledSequence& s, int64_t layer, std::vector<uint64_t>& x, const std::vector<uint64_t>& tags) {
    const LayerRows rows = rows_of(s, layer);
    for (int64_t p = s.start; p < s.start + s.num_rows; ++p) {
      uint64_t& value = x[static_cast<size_t>(p - s.start)];
      if (p < rows.first_computed) {
        value = kAbsent;
        continue;
      }
      uint64_t seen = 0;
      for (int64_t q = std::max({p - model_.facts.window() + 1, rows.window_floor, int64_t{0}}); q <= p; ++q) {
        const Cell& key = cell(kWindow, layer, s, q, page_size_);
        EXPECT_EQ(key.tag, tags[static_cast<size_t>(q)]) << "request " << s.id << " layer " << layer << " row " << p
                                                         << " reads window key " << q << " that is not its own";
        seen += key.value;
      }
      const int64_t source = model_.source_of(layer);
      if (source >= 0) {
        const int64_t ratio = model_.ratios[static_cast<size_t>(source)];
        const int64_t visible = (p + 1) / ratio;
        uint64_t sum = 0;
        for (int64_t c = 0; c < visible; ++c) {
          const Cell& key = cell(kCompressed, source, s, c, page_size_ / ratio);
          EXPECT_EQ(key.tag, tags[static_cast<size_t>(c * ratio + ratio - 1)])
              << "request " << s.id << " layer " << layer << " row " << p << " reads compressed key " << c
              << " that is not its own";
          sum += mix(key.value, static_cast<uint64_t>(c));
        }
        if (visible > 0) seen = mix(seen, sum);
      }
      value = mix(mix(value, seen), 5000 + static_cast<uint64_t>(layer));
      computed.push_back({s.id, layer, p, value});
    }
  }

  const FakeModel& model_;
  int64_t page_size_;
  std::array<std::vector<std::vector<Cell>>, 2> cells_;        // [group][layer][page * page_size + offset]
  std::array<std::vector<std::vector<int32_t>>, 2> tables_;    // [group][slot][entry]
  std::vector<std::vector<std::map<int64_t, Cell>>> partial_;  // [slot][layer], by position in the group
};

}  // namespace reprise::testing
