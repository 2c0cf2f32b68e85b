#include <nanobind/nanobind.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

#include "bindings.h"
#include "reprise/engine_loop.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace reprise {
namespace {

// The loop's thread takes the GIL for its callbacks, so whoever waits for that thread must not hold it.
class PythonEngineLoop : public EngineLoop {
 public:
  using EngineLoop::EngineLoop;
  ~PythonEngineLoop() {
    const nb::gil_scoped_release release;
    stop();
  }
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
  using release_gil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<PythonEngineLoop>(m, "EngineLoop", nb::is_weak_referenceable(),
                               "Runs an engine on a thread of its own and gives each request's outputs to its "
                               "callback. While it runs, step() and "
                               "submit() of the engine itself are refused. As a context manager it starts and stops.")
      .def(
          "__init__",
          [](nb::handle_t<PythonEngineLoop> self, Engine& engine) {
            new (nb::inst_ptr<PythonEngineLoop>(self)) PythonEngineLoop(engine);
            nb::inst_mark_ready(self);
            // No thread may ask for the GIL of an interpreter that is shutting down.
            nb::module_::import_("atexit").attr("register")(nb::cpp_function([loop = nb::weakref(self)] {
              const nb::object alive = loop();
              if (!alive.is_none()) alive.attr("stop")();
            }));
          },
          "engine"_a, nb::keep_alive<1, 2>())
      .def("start", &PythonEngineLoop::start, release_gil(),
           "Starts stepping, also what the engine still holds. Raises ValueError when this or another loop runs "
           "already.")
      .def("stop", &PythonEngineLoop::stop, release_gil(),
           "Returns once the current step is over; unfinished requests stay for the next start(). From a callback it "
           "returns at once, and no further step begins.")
      .def("drain", &PythonEngineLoop::drain, release_gil(),
           "Waits until everything submitted before the call has finished; False when the loop was stopped before. "
           "Raises "
           "what a step raised: that ends the loop and every unfinished request.")
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
