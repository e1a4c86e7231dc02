// torch's Store as the rendezvous of a group.
#pragma once

#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "base/error.h"
#include "base/store.h"

namespace hybridcomm {

// A TCPStore serves one call at a time: while another thread waits in it for a key, a group cannot
// join through it. A connection of our own is no way out, for opening one (Store::clone) takes five
// seconds now and then [torch 2.13].
class TorchStore : public KeyValueStore {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    guarded([&] { store_->set(key, value); });
  }

  std::optional<std::string> try_get(const std::string& key) override {
    std::optional<std::string> value;
    guarded([&] {
      // get() alone would wait for the key.
      if (store_->check({key})) value = store_->get_to_str(key);
    });
    return value;
  }

 private:
  // torch's errors carry a stack trace in what().
  template <class Function>
  static void guarded(Function&& function) {
    try {
      function();
    } catch (const c10::Error& error) {
      throw CommError(ErrorKind::kSystem, std::string("the store through which the ranks meet "
                                                      "failed: ") +
                                              error.what_without_backtrace());
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace hybridcomm
