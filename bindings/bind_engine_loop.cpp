#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "bindings.h"
#include "reprise/engine_loop.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace reprise {
namespace {

// The loops of this process. Whoever waits for a loop's thread must not hold the GIL, which its callbacks take; and no
// thread may ask for the GIL of an interpreter that is shutting down.
class Loops {
 public:
  void add(const std::shared_ptr<EngineLoop>& loop) {
    const std::lock_guard lock(mutex_);
    live_.insert(loop);
  }

  // Stops a loop that Python has dropped, then drops its engine.
  void end(std::shared_ptr<EngineLoop> loop, nb::object engine) noexcept {
    if (!loop->on_own_thread()) {
      const nb::gil_scoped_release release;
      loop->stop();
      remove(loop);
      return;
    }
    // A callback held the last reference. Its thread cannot wait for itself, so another one does.
    loop->stop();
    const nb::handle held = engine.release();
    begin_ending();
    try {
      std::thread([this, loop, held]() mutable {
        loop->stop();
        remove(loop);
        {
          const nb::gil_scoped_acquire acquire;
          loop.reset();
          held.dec_ref();
        }
        end_ending();
      }).detach();
    } catch (const std::system_error&) {  // no more threads: both stay until the process exits
      end_ending();
    }
  }

  void stop_all() {
    const nb::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    const std::set<std::shared_ptr<EngineLoop>> live = std::exchange(live_, {});
    lock.unlock();
    for (const auto& loop : live) loop->stop();
    lock.lock();
    ended_.wait(lock, [&] { return num_ending_ == 0; });
    lock.unlock();
  }

 private:
  void remove(const std::shared_ptr<EngineLoop>& loop) {
    const std::lock_guard lock(mutex_);
    live_.erase(loop);
  }
  void begin_ending() {
    const std::lock_guard lock(mutex_);
    ++num_ending_;
  }
  void end_ending() {
    const std::lock_guard lock(mutex_);
    --num_ending_;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<std::shared_ptr<EngineLoop>> live_;
  int64_t num_ending_ = 0;  // loops that another thread is ending
};

Loops& loops() {
  static Loops all;
  return all;
}

class PythonEngineLoop {
 public:
  explicit PythonEngineLoop(nb::handle_t<Engine> engine)
      : engine_(nb::borrow(engine)), loop_(std::make_shared<EngineLoop>(nb::cast<Engine&>(engine))) {
    loops().add(loop_);
  }
  ~PythonEngineLoop() { loops().end(std::move(loop_), std::move(engine_)); }
  PythonEngineLoop(const PythonEngineLoop&) = delete;
  PythonEngineLoop& operator=(const PythonEngineLoop&) = delete;

  void start() { loop_->start(); }
  void stop() { loop_->stop(); }
  bool is_running() const { return loop_->is_running(); }
  RequestId submit(Request request, EngineLoop::OnOutput on_output) {
    return loop_->submit(std::move(request), std::move(on_output));
  }
  bool drain() {
    return loop_->drain([] {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
  }

 private:
  nb::object engine_;  // outlives the loop
  std::shared_ptr<EngineLoop> loop_;
};

// A Python callable that is dropped on the loop's thread.
struct HeldCallable {
  explicit HeldCallable(nb::callable on_output) : callable(std::move(on_output)) {}
  ~HeldCallable() {
    const nb::gil_scoped_acquire acquire;
    callable.reset();
  }
  HeldCallable(const HeldCallable&) = delete;
  HeldCallable& operator=(const HeldCallable&) = delete;

  nb::callable callable;
};

// What the callable raises goes to sys.unraisablehook, and ends the request.
EngineLoop::OnOutput make_callback(nb::callable on_output) {
  return [held = std::make_shared<HeldCallable>(std::move(on_output))](const RequestOutput& output) {
    const nb::gil_scoped_acquire acquire;
    try {
      held->callable(output);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the output callback of a request");
      throw std::runtime_error("the output callback raised");
    }
  };
}

}  // namespace

void bind_engine_loop(nb::module_& m) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { loops().stop_all(); }));

  using release_gil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<PythonEngineLoop>(m, "EngineLoop", nb::is_weak_referenceable(),
                               "Runs an engine on a thread of its own and gives each request's outputs to its "
                               "callback. While it runs, step() and "
                               "submit() of the engine itself are refused. As a context manager it starts and stops.")
      .def(nb::init<nb::handle_t<Engine>>(), "engine"_a)
      .def("start", &PythonEngineLoop::start, release_gil(),
           "Starts stepping, also what the engine still holds. Raises ValueError when this or another loop runs "
           "already.")
      .def("stop", &PythonEngineLoop::stop, release_gil(),
           "Returns once the current step is over; unfinished requests stay for the next start(). From a callback it "
           "returns at once, and no further step begins.")
      .def("drain", &PythonEngineLoop::drain, release_gil(),
           "Waits until everything submitted before the call has finished; False when the loop was stopped before. "
           "Raises what a step raised: that ends the loop and every unfinished request. Ctrl-C ends the wait.")
      .def(
          "submit",
          [](PythonEngineLoop& self, Request request, nb::callable on_output) {
            EngineLoop::OnOutput callback = make_callback(std::move(on_output));
            const nb::gil_scoped_release release;
            return self.submit(std::move(request), std::move(callback));
          },
          "request"_a, "on_output"_a,
          nb::sig("def submit(self, request: Request, on_output: collections.abc.Callable[[RequestOutput], object]) -> "
                  "int"),
          "Queues a request and returns its id; on_output is called on the loop's thread with every output, the last "
          "one "
          "being finished. One that raises ends its own request. Raises ValueError for a request that cannot be "
          "served.")
      .def("is_running", &PythonEngineLoop::is_running, release_gil())
      .def(
          "__enter__",
          [](nb::handle_t<PythonEngineLoop> self) {
            self.attr("start")();
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> EngineLoop"))
      .def("__exit__", [](PythonEngineLoop& self, const nb::args&) {
        const nb::gil_scoped_release release;
        self.stop();
      });
}

}  // namespace reprise
