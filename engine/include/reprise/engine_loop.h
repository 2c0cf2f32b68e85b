#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "reprise/engine.h"

namespace reprise {

// Runs an engine on a thread of its own and gives each request's outputs to its callback. The thread sleeps while there
// is nothing to run. While it runs, step() and submit() of the engine itself are refused; abort, abort_all and stats go
// on. One that embeds the engine in a loop of its own needs none of this, so it is a class beside Engine. The engine
// must outlive the loop. All members may be called from any thread.
class EngineLoop {
 public:
  // Called on the loop's thread, in the order of the outputs; the one with `finished` is a request's last. It may call
  // submit, abort and stop. One that throws has its request aborted and is not called again; no other request notices.
  using OnOutput = std::function<void(const RequestOutput&)>;

  explicit EngineLoop(Engine& engine) : engine_(engine) {}
  // Stops. Not to be called from a callback.
  ~EngineLoop() { stop(); }
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Starts stepping, also what the engine still holds. Throws std::invalid_argument when this or another loop runs
  // already.
  void start();
  // Returns once the current step is over. Unfinished requests stay as they are, until the next start().
  // From a callback it returns at once, and no further step begins.
  void stop();
  // Waits until everything submitted before the call has finished and had its last callback; false when the loop was
  // stopped before. Throws what a step threw, once the loop has ended of it: every unfinished request ends too, with an
  // output that carries the message in `error`. `on_wait`, when given, is called every tenth of a second of the wait;
  // what it throws ends the wait and nothing else.
  bool drain(const std::function<void()>& on_wait = nullptr);
  // Queues a request; before start() and after stop() it waits for the next start(). Throws std::invalid_argument for
  // one that cannot be served, and after a step failed.
  RequestId submit(Request request, OnOutput on_output);
  bool is_running() const;
  // Whether the caller is on the loop's thread: in a callback or in the destructor of one.
  bool on_own_thread() const;

 private:
  using Callbacks = std::map<RequestId, OnOutput>;

  void run();
  bool wait_for_work();
  void deliver(const RequestOutput& output);
  void give_up(const std::string& error);

  Engine& engine_;
  std::mutex lifecycle_mutex_;  // one start or stop at a time; taken before mutex_
  mutable std::mutex mutex_;    // guards what follows; free in steps and callbacks
  std::condition_variable wake_;
  std::condition_variable progress_;  // a request ended, or the loop did
  Callbacks callbacks_;               // of unfinished requests; only the loop's thread removes one while it runs
  std::thread thread_;
  std::thread::id thread_id_;  // of the running loop
  bool stopping_ = false;
  std::exception_ptr failure_;  // of a step, until the next start()
};

}  // namespace reprise
