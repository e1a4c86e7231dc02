// What every operation notes when it begins and ends.
#include "engine/operation.h"

#include <utility>

namespace hybridcomm {

void Operation::enter() {
  if (completion_.recorded == nullptr) return;
  record_ = FlightRecorder::instance().record(*std::exchange(completion_.recorded, nullptr),
                                              sequence_, enqueued_at_, timeout_);
}

void Operation::begin() {
  // A call of several programs begins with the first.
  if (started_at_ != Clock::time_point{}) return;
  started_at_ = Clock::now();
  if (record_ != 0) FlightRecorder::instance().start(record_, started_at_);
}

void Operation::end(std::unique_ptr<const ErrorInfo> error) {
  error_ = std::move(error);
  finished_at_ = Clock::now();
  if (record_ == 0) return;
  FlightRecorder::instance().end(record_, finished_at_,
                                 error_ != nullptr ? error_->kind : ErrorKind::kNone, peer());
}

}  // namespace hybridcomm
