// What the scheduler itself costs, without a model: plan plus commit while requests decode and while they prefill, and
// submission of a long prompt. Prints one JSON object. `reprise bench scheduler` runs it and explains the fields.
#include "scheduler/scheduler.h"

#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocations.h"
#include "reprise/error.h"

namespace reprise {
namespace {

constexpr int64_t kWarmSteps = 4;  // before each timed block: another load ran in between
// The released V4.1, as far as a scheduler knows it.
ModelFacts decoder_facts(int64_t ratio) {
  constexpr int64_t kWindow = 128;
  ModelFacts facts;
  facts.layers.assign(40, {.window = kWindow});
  facts.num_encoder_layers = 21;
  facts.groups = {{.name = "window", .window = kWindow}, {.name = "compressed", .cacheable = true}};
  facts.cells = {{.group = 0}, {.group = 1, .ratio = ratio}};
  return facts;
}

struct Options {
  std::vector<int64_t> requests{1, 64, 256, 1024};
  int64_t prompt_len = 1024;
  int64_t page_size = 64;
  int64_t max_num_batched_tokens = 8192;
  int64_t steps = 64;  // per timed block; a multiple of page_size covers every request's new pages
  int64_t repeat = 15;
  int64_t finished = 10000;
  int64_t submit_len = 100000;
  uint64_t seed = 0;
};

struct Sample {
  double us = 0;
  int64_t allocations = 0;
  int64_t steps = 0;  // or submissions
};

// Time of this thread on a processor: on a busy machine a block outlasts a time slice, and waiting is no cost of ours.
double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

template <typename Function>
Sample timed(const Function& run_steps) {
  const int64_t allocations = num_allocations();
  const double start = thread_us();
  const int64_t steps = run_steps();
  return {thread_us() - start, num_allocations() - allocations, steps};
}

// A scheduler whose steps bring every sampling request one token.
class Load {
 public:
  // Room for `num_requests` of `prompt_len` + `max_tokens` tokens at once.
  Load(const Options& options, int64_t num_requests, bool prefix_sharing, int64_t prompt_len, int64_t max_tokens)
      : scheduler_(config(options, num_requests, prefix_sharing, prompt_len + max_tokens)),
        random_(options.seed),
        shared_prefix_(random_tokens(prefix_sharing ? prompt_len / 2 : 0)) {
    results_.reserve(static_cast<size_t>(num_requests));
  }

  // Prompts are the shared prefix and random tokens after it.
  std::vector<int32_t> make_prompt(int64_t prompt_len) {
    std::vector<int32_t> prompt(shared_prefix_);
    const auto own = random_tokens(std::max<int64_t>(prompt_len - static_cast<int64_t>(prompt.size()), 0));
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompt.resize(static_cast<size_t>(prompt_len));
    return prompt;
  }

  void submit(std::vector<int32_t> prompt, int64_t max_tokens) {
    SequenceRequest request;
    request.id = next_id_++;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    scheduler_.add(std::move(request));
  }
  void submit_many(int64_t count, int64_t prompt_len, int64_t max_tokens) {
    for (int64_t i = 0; i < count; ++i) submit(make_prompt(prompt_len), max_tokens);
  }

  // Plans and commits one step. Requests end with the first token that `finish` steps bring them.
  const StepPlan& step(bool finish) {
    const StepPlan& plan = scheduler_.plan();
    results_.clear();
    for (const ScheduledSequence& scheduled : plan.sequences) {
      if (scheduled.samples) results_.push_back({scheduled.id, 7, finish});
    }
    scheduler_.commit(results_);
    return plan;
  }
  int64_t decode(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) step(false);
    return steps;
  }
  int64_t finish_all() {
    int64_t steps = 0;
    for (; scheduler_.has_unfinished(); ++steps) step(true);
    return steps;
  }
  void step_until_all_decode(int64_t num_requests) {
    for (;;) {
      const StepPlan& plan = step(false);
      if (static_cast<int64_t>(plan.sequences.size()) == num_requests && plan.num_rows == num_requests &&
          scheduler_.num_running() == num_requests && scheduler_.num_waiting() == 0) {
        return;
      }
    }
  }
  void abort_all() {
    scheduler_.abort_all();
    scheduler_.plan();  // forgets what ended
    scheduler_.commit({});
  }

 private:
  static SchedulerConfig config(const Options& options, int64_t num_requests, bool prefix_sharing, int64_t max_len) {
    SchedulerConfig config;
    config.model = decoder_facts(options.page_size % 2 == 0 ? 2 : 1);
    config.max_num_seqs = num_requests;
    config.max_num_batched_tokens = options.max_num_batched_tokens;
    config.max_model_len = max_len;
    config.page_size = options.page_size;
    // One page more for each request: what admission holds in reserve; and the pad page.
    const int64_t pages = num_requests * ((max_len + options.page_size - 1) / options.page_size + 1) + 1;
    config.num_pages = {pages, pages};
    config.enable_prefix_caching = prefix_sharing;
    config.prefix_rebuild = PrefixRebuild::kBounded;  // an exact one reaches further back than these prefixes
    return config;
  }
  std::vector<int32_t> random_tokens(int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % 100000);
    return tokens;
  }

  Scheduler scheduler_;
  std::mt19937_64 random_;
  std::vector<int32_t> shared_prefix_;
  std::vector<SequenceResult> results_;
  RequestId next_id_ = 0;
};

// The loads of one row of the table, with what was measured of them.
struct Setting {
  int64_t num_requests = 0;
  bool prefix_sharing = false;
  std::unique_ptr<Load> fresh;           // decodes
  std::unique_ptr<Load> after_finished;  // decodes the same after many requests have come and gone
  std::unique_ptr<Load> prefill;
  std::vector<Sample> decode_samples, after_finished_samples, submit_samples, prefill_samples;
};

struct Submission {
  bool prefix_sharing = false;
  std::unique_ptr<Load> load;
  std::vector<Sample> samples;
};

int64_t max_decode_tokens(const Options& options, int64_t num_requests) {
  const int64_t timed_steps = (options.repeat + 1) * (options.steps + kWarmSteps);
  // The first to finish its prompt decodes while the others prefill with what it leaves of the budget.
  const int64_t prefill_rows = options.max_num_batched_tokens - num_requests;
  return timed_steps + 2 * (num_requests * options.prompt_len / prefill_rows) + num_requests + 64;
}

Setting make_setting(const Options& options, int64_t num_requests, bool prefix_sharing) {
  Setting setting{.num_requests = num_requests, .prefix_sharing = prefix_sharing};
  const int64_t max_tokens = max_decode_tokens(options, num_requests);
  const auto make_decoding = [&](int64_t num_finished) {
    auto load = std::make_unique<Load>(options, num_requests, prefix_sharing, options.prompt_len, max_tokens);
    for (int64_t done = 0; done < num_finished; done += num_requests) {
      load->submit_many(std::min(num_requests, num_finished - done), options.page_size + 1, 1);
      load->finish_all();
    }
    load->submit_many(num_requests, options.prompt_len, max_tokens);
    load->step_until_all_decode(num_requests);
    return load;
  };
  setting.fresh = make_decoding(0);
  setting.after_finished = make_decoding(options.finished);
  setting.prefill = std::make_unique<Load>(options, num_requests, prefix_sharing, options.prompt_len, 1);
  return setting;
}

void measure(const Options& options, Setting& setting) {
  const auto decode = [&](Load& load) {
    load.decode(kWarmSteps);
    return timed([&] { return load.decode(options.steps); });
  };
  setting.decode_samples.push_back(decode(*setting.fresh));
  setting.after_finished_samples.push_back(decode(*setting.after_finished));
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < setting.num_requests; ++i)
    prompts.push_back(setting.prefill->make_prompt(options.prompt_len));
  setting.submit_samples.push_back(timed([&] {
    for (std::vector<int32_t>& prompt : prompts) setting.prefill->submit(std::move(prompt), 1);
    return setting.num_requests;
  }));
  setting.prefill_samples.push_back(timed([&] { return setting.prefill->finish_all(); }));
}

void measure(const Options& options, Submission& submission) {
  auto prompt = submission.load->make_prompt(options.submit_len);
  submission.samples.push_back(timed([&] {
    submission.load->submit(std::move(prompt), 1);
    return 1;
  }));
  submission.load->abort_all();
}

// The first sample warms up.
template <typename Value>
double median(const std::vector<Sample>& samples, const Value& value) {
  std::vector<double> values;
  for (size_t i = 1; i < samples.size(); ++i) values.push_back(value(samples[i]));
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}
double us_per_step(const Sample& sample) { return sample.us / static_cast<double>(sample.steps); }
double allocations_per_step(const Sample& sample) {
  return static_cast<double>(sample.allocations) / static_cast<double>(sample.steps);
}

void print(const Options& options, const std::vector<Setting>& settings, const std::vector<Submission>& submissions) {
  std::cout << "{\"prompt_len\": " << options.prompt_len << ", \"page_size\": " << options.page_size
            << ", \"max_num_batched_tokens\": " << options.max_num_batched_tokens
            << ", \"finished\": " << options.finished << ", \"steps\": " << options.steps
            << ", \"repeat\": " << options.repeat << ", \"seed\": " << options.seed << ",\n \"results\": [";
  const char* separator = "\n";
  for (const Setting& setting : settings) {
    const auto requests = static_cast<double>(setting.num_requests);
    const double decode = median(setting.decode_samples, us_per_step);
    const double after_finished = median(setting.after_finished_samples, us_per_step);
    const double prefill = median(setting.prefill_samples, [](const Sample& sample) { return sample.us; });
    std::cout << separator << "  {\"requests\": " << setting.num_requests
              << ", \"prefix_sharing\": " << (setting.prefix_sharing ? "true" : "false")
              << ",\n   \"decode_us_per_step\": " << decode << ", \"decode_us_per_request\": " << decode / requests
              << ", \"decode_allocations_per_step\": " << median(setting.decode_samples, allocations_per_step)
              << ",\n   \"decode_us_per_step_after_finished\": " << after_finished
              << ", \"decode_us_per_request_after_finished\": " << after_finished / requests
              << ",\n   \"submit_us_per_request\": " << median(setting.submit_samples, us_per_step)
              << ", \"prefill_steps\": " << setting.prefill_samples.back().steps
              << ", \"prefill_us_per_step\": " << median(setting.prefill_samples, us_per_step)
              << ", \"prefill_us_per_request\": " << prefill / requests
              << ", \"prefill_allocations_per_step\": " << median(setting.prefill_samples, allocations_per_step) << "}";
    separator = ",\n";
  }
  std::cout << "],\n \"submit\": [";
  separator = "\n";
  for (const Submission& submission : submissions) {
    std::cout << separator << "  {\"prompt_len\": " << options.submit_len
              << ", \"prefix_sharing\": " << (submission.prefix_sharing ? "true" : "false")
              << ", \"ms\": " << median(submission.samples, us_per_step) / 1000 << "}";
    separator = ",\n";
  }
  std::cout << "]}\n";
}

template <typename Integer>
Integer parse(std::string_view name, std::string_view text) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  REPRISE_REQUIRE(error == std::errc() && end == text.data() + text.size(), "wanted an integer for ", name, " but got ",
                  text);
  return value;
}

std::vector<int64_t> parse_list(std::string_view name, std::string_view text) {
  std::vector<int64_t> values;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    values.push_back(parse<int64_t>(name, text.substr(start, end - start)));
    start = end + 1;
  }
  return values;
}

Options parse_options(const std::vector<std::string_view>& arguments) {
  Options options;
  const std::pair<std::string_view, int64_t*> integers[] = {
      {"--prompt-len", &options.prompt_len},
      {"--page-size", &options.page_size},
      {"--steps", &options.steps},
      {"--repeat", &options.repeat},
      {"--finished", &options.finished},
      {"--submit-len", &options.submit_len},
      {"--max-num-batched-tokens", &options.max_num_batched_tokens}};
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const std::string_view name = arguments[i];
    REPRISE_REQUIRE(i + 1 < arguments.size(), "wanted a value after ", name);
    const std::string_view text = arguments[i + 1];
    const auto integer = std::find_if(std::begin(integers), std::end(integers),
                                      [&](const auto& candidate) { return candidate.first == name; });
    if (integer != std::end(integers)) {
      *integer->second = parse<int64_t>(name, text);
      REPRISE_REQUIRE(*integer->second >= (name == "--finished" ? 0 : 1), "wanted a larger ", name, " than ", text);
    } else if (name == "--requests") {
      options.requests = parse_list(name, text);
    } else if (name == "--seed") {
      options.seed = parse<uint64_t>(name, text);
    } else {
      REPRISE_REQUIRE(false, "wanted --requests, --prompt-len, --page-size, --max-num-batched-tokens, --steps, ",
                      "--repeat, --finished, --submit-len or --seed but got ", name);
    }
  }
  for (int64_t count : options.requests) {
    REPRISE_REQUIRE(count >= 1 && count < options.max_num_batched_tokens,
                    "wanted from 1 to max-num-batched-tokens - 1 requests but got ", count);
  }
  return options;
}

void run(const Options& options) {
  std::vector<Setting> settings;
  std::vector<Submission> submissions;
  for (bool prefix_sharing : {false, true}) {
    for (int64_t count : options.requests) settings.push_back(make_setting(options, count, prefix_sharing));
    submissions.push_back(
        {prefix_sharing, std::make_unique<Load>(options, 1, prefix_sharing, options.submit_len, 1), {}});
  }
  // Interleaved, so that a drift of the machine hits all alike.
  for (int64_t round = 0; round <= options.repeat; ++round) {
    for (Setting& setting : settings) measure(options, setting);
    for (Submission& submission : submissions) measure(options, submission);
  }
  print(options, settings, submissions);
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  try {
    reprise::run(reprise::parse_options({argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
