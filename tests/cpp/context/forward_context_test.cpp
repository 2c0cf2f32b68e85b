#include "reprise/forward_context.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <thread>

namespace reprise {
namespace {

std::shared_ptr<ForwardContext> context_of(int64_t num_rows) {
  auto context = std::make_shared<ForwardContext>();
  context->num_rows = num_rows;
  return context;
}

TEST(ForwardContextTest, IsAbsentUntilAScopeMakesOneCurrent) {
  EXPECT_FALSE(is_forward_context_available());
  EXPECT_EQ(current_forward_context(), nullptr);
  EXPECT_THROW(get_forward_context(), std::logic_error);
  const auto context = context_of(7);
  {
    const ScopedForwardContext scope(context);
    EXPECT_TRUE(is_forward_context_available());
    EXPECT_EQ(&get_forward_context(), context.get());
    EXPECT_EQ(current_forward_context(), context);
  }
  EXPECT_FALSE(is_forward_context_available());
}

TEST(ForwardContextTest, ScopesNestAndANullOneHidesTheOuter) {
  const ScopedForwardContext outer(context_of(1));
  {
    const ScopedForwardContext inner(context_of(2));
    EXPECT_EQ(get_forward_context().num_rows, 2);
    {
      const ScopedForwardContext hidden(nullptr);
      EXPECT_FALSE(is_forward_context_available());
      EXPECT_THROW(get_forward_context(), std::logic_error);
    }
    EXPECT_EQ(get_forward_context().num_rows, 2);
  }
  EXPECT_EQ(get_forward_context().num_rows, 1);
}

TEST(ForwardContextTest, AnExceptionRestoresTheOuterContext) {
  const ScopedForwardContext outer(context_of(1));
  try {
    const ScopedForwardContext inner(context_of(2));
    throw std::runtime_error("from a layer");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(get_forward_context().num_rows, 1);
}

TEST(ForwardContextTest, EachThreadHasItsOwnStack) {
  const ScopedForwardContext scope(context_of(1));
  bool seen_at_start = true;
  int64_t seen_inside = 0;
  std::thread other([&] {
    seen_at_start = is_forward_context_available();
    const ScopedForwardContext own(context_of(9));
    seen_inside = get_forward_context().num_rows;
  });
  other.join();
  EXPECT_FALSE(seen_at_start);
  EXPECT_EQ(seen_inside, 9);
  EXPECT_EQ(get_forward_context().num_rows, 1);
}

TEST(ForwardContextTest, AScopeOwnsItsContext) {
  std::weak_ptr<ForwardContext> watched;
  {
    auto context = context_of(3);
    watched = context;
    const ScopedForwardContext scope(std::move(context));
    EXPECT_EQ(get_forward_context().num_rows, 3);
  }
  EXPECT_TRUE(watched.expired());
}

// A context whose end reads the stack, as a front end's may.
class Witness : public ForwardContext {
 public:
  explicit Witness(bool* available) : available_(available) {}
  ~Witness() override { *available_ = is_forward_context_available(); }

 private:
  bool* available_;
};

TEST(ForwardContextTest, AContextThatEndsWithItsScopeIsNoLongerCurrent) {
  bool available = true;
  {
    const ScopedForwardContext scope(std::make_shared<Witness>(&available));
  }
  EXPECT_FALSE(available);
}

}  // namespace
}  // namespace reprise
