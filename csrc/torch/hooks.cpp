// Counting what is under way, and calling the hook.
#include "torch/hooks.h"

#include <c10/util/Exception.h>

#include <span>
#include <utility>

#include "torch/callbacks.h"
#include "torch/interpreter.h"

namespace hybridcomm {

void Observers::set_hook(Hook hook) {
  hook_ = std::move(hook);
  publish(hooked_, 1u);
}

void Observers::call_hook(c10d::OpType type, uint64_t sequence, Clock::time_point started,
                          Clock::time_point finished) const {
  try {
    hook_(std::make_shared<c10d::WorkInfo>(type, sequence, started, finished, finished - started));
  } catch (const std::exception& thrown) {
    TORCH_WARN("hybridcomm: the completion hook threw: ", thrown.what());
  }
}

void Observers::wait_for_pending() {
  TORCH_CHECK(current_callback() == 0,
              "waitForPendingWorks was called in a callback, which it would wait for itself");
  const ReleaseGil released;
  Bell* const bell = &bell_;
  wait_until(
      WaitPolicy::caller(1),
      [&] { return observe(pending_) == 0 ? Attempt::kDone : Attempt::kBlocked; },
      [&] { return std::span<Bell* const>(&bell, 1); },
      [] {
        check_signals();
        return std::chrono::microseconds(20'000);
      });
}

Pending::Pending(std::shared_ptr<Observers> observers) : observers_(std::move(observers)) {
  fetch_add(observers_->pending_, 1u);
}

void Pending::release() {
  if (observers_ == nullptr) return;
  if (fetch_add(observers_->pending_, ~0u) == 1) ring(observers_->bell_);
  observers_ = nullptr;
}

}  // namespace hybridcomm
