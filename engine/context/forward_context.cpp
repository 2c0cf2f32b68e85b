#include "reprise/forward_context.h"

#include <stdexcept>
#include <utility>

namespace reprise {
namespace {

std::shared_ptr<ForwardContext>& current() {
  thread_local std::shared_ptr<ForwardContext> context;
  return context;
}

}  // namespace

std::shared_ptr<ForwardContext> current_forward_context() { return current(); }

bool is_forward_context_available() { return current() != nullptr; }

ForwardContext& get_forward_context() {
  ForwardContext* context = current().get();
  if (context == nullptr) {
    throw std::logic_error(
        "[get_forward_context] wanted a current forward context on this thread but got none; make one current with "
        "ScopedForwardContext");
  }
  return *context;
}

ScopedForwardContext::ScopedForwardContext(std::shared_ptr<ForwardContext> context)
    : covered_(std::exchange(current(), std::move(context))) {}

// The scope's own context may be destroyed here, and with it code of the owner that reads the stack: restore first.
ScopedForwardContext::~ScopedForwardContext() {
  const std::shared_ptr<ForwardContext> ended = std::exchange(current(), std::move(covered_));
}

}  // namespace reprise
