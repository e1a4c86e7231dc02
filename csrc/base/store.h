// The rendezvous: a small key-value store that all ranks of a group can reach before they can reach
// each other. torch's Store stands behind it, or a file, or a map in a test.
#pragma once

#include <optional>
#include <string>

namespace hybridcomm {

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Replaces what the key held.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Never blocks for long; nullopt if the key has not been set.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
};

}  // namespace hybridcomm
