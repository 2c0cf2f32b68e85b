#include "reprise/engine_loop.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "reprise/error.h"

namespace reprise {

void EngineLoop::start() {
  const std::lock_guard lifecycle(lifecycle_mutex_);
  REPRISE_REQUIRE(!is_running(), "[start] wanted a loop that is not running but it runs already; call stop() first");
  if (thread_.joinable()) thread_.join();  // ended by a failure or from a callback
  engine_.set_looping(true);
  const std::lock_guard lock(mutex_);
  stopping_ = false;
  failure_ = nullptr;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    engine_.set_looping(false);
    throw;
  }
  thread_id_ = thread_.get_id();
}

void EngineLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (thread_id_ == std::this_thread::get_id()) {
      stopping_ = true;
      return;
    }
  }
  const std::lock_guard lifecycle(lifecycle_mutex_);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool EngineLoop::drain(const std::function<void()>& on_wait) {
  std::unique_lock lock(mutex_);
  const bool running = thread_id_ != std::thread::id();
  REPRISE_REQUIRE(thread_id_ != std::this_thread::get_id(),
                  "[drain] wanted a call from outside but got one from a callback");
  REPRISE_REQUIRE(running || failure_ || callbacks_.empty(), "[drain] wanted a running loop but ", callbacks_.size(),
                  " requests wait and it is stopped; call start() first");
  const RequestId last = callbacks_.empty() ? -1 : callbacks_.rbegin()->first;
  const auto done = [&] { return callbacks_.empty() || callbacks_.begin()->first > last; };
  const auto ended = [&] { return thread_id_ == std::thread::id(); };
  const auto wait_until = [&](const auto& is_over) {
    while (on_wait && !progress_.wait_for(lock, std::chrono::milliseconds(100), is_over)) {
      lock.unlock();
      on_wait();
      lock.lock();
    }
    progress_.wait(lock, is_over);
  };
  wait_until([&] { return done() || ended(); });
  if (const std::exception_ptr failure = failure_) {
    wait_until([&] { return ended() || failure_ != failure; });
    std::rethrow_exception(failure);
  }
  return done();
}

RequestId EngineLoop::submit(Request request, OnOutput on_output) {
  REPRISE_REQUIRE(on_output != nullptr, "[submit] wanted a callback for the outputs but got none");
  RequestId id = 0;
  {
    // Held until the callback is in place, so that no output comes before it.
    const std::lock_guard lock(mutex_);
    REPRISE_REQUIRE(!failure_,
                    "[submit] wanted a loop whose steps work but one failed (drain() throws why); call start() again");
    id = engine_.submit_unchecked(std::move(request));
    callbacks_.emplace(id, std::move(on_output));
  }
  wake_.notify_one();
  return id;
}

bool EngineLoop::is_running() const {
  const std::lock_guard lock(mutex_);
  return thread_id_ != std::thread::id();
}

bool EngineLoop::on_own_thread() const {
  const std::lock_guard lock(mutex_);
  return thread_id_ == std::this_thread::get_id();
}

void EngineLoop::run() {
  try {
    while (wait_for_work()) {
      for (const RequestOutput& output : engine_.step_unchecked()) deliver(output);
    }
  } catch (const std::exception& error) {
    give_up(error.what());
  } catch (...) {
    give_up("unknown error");
  }
  engine_.set_looping(false);
  const std::lock_guard lock(mutex_);
  thread_id_ = {};
  progress_.notify_all();
}

// Sleeps until there is something to run; false when the loop is to end.
bool EngineLoop::wait_for_work() {
  Callbacks stale;  // destroyed after the lock is released: callbacks may hold what takes locks of its own
  std::unique_lock lock(mutex_);
  if (!stopping_ && !engine_.has_unfinished()) {
    stale.swap(callbacks_);  // requests that ended in steps by hand, between stop() and start()
    if (!stale.empty()) progress_.notify_all();
    wake_.wait(lock, [&] { return stopping_ || engine_.has_unfinished(); });
  }
  return !stopping_;
}

void EngineLoop::deliver(const RequestOutput& output) {
  OnOutput* on_output = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = callbacks_.find(output.id);
    if (found == callbacks_.end()) return;
    on_output = &found->second;
  }
  bool returned = true;
  try {
    (*on_output)(output);
  } catch (...) {
    returned = false;
  }
  if (returned && !output.finished) return;
  if (!returned) engine_.abort(output.id);
  Callbacks::node_type ended;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  ended = callbacks_.extract(output.id);
  progress_.notify_all();
}

// Ends every request, so that nobody waits for ever.
void EngineLoop::give_up(const std::string& error) {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();  // first of all: from here on nothing is submitted
    for (const auto& [id, on_output] : callbacks_) ids.push_back(id);
  }
  engine_.abort_all();
  for (const RequestId id : ids) {
    deliver({.id = id, .finished = true, .finish_reason = FinishReason::kAbort, .error = error});
  }
}

}  // namespace reprise
