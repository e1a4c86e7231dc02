// The smallest test harness: CHECK counts and reports failures, check_status() is main's result.
#pragma once

#include <cstdarg>
#include <cstdio>

namespace check {

inline int failures = 0;

[[gnu::format(printf, 4, 5)]] inline void fail(const char* file, int line, const char* condition,
                                               const char* format, ...) {
  std::fprintf(stderr, "%s:%d: not true: %s ", file, line, condition);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  ++failures;
}

inline void fail(const char* file, int line, const char* condition) {
  fail(file, line, condition, "%s", "");
}

}  // namespace check

// Goes on after a failure. After the condition, optionally, printf's format and arguments.
#define CHECK(condition, ...)                                                 \
  do {                                                                        \
    if (!(condition)) {                                                       \
      check::fail(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                         \
  } while (false)

inline int check_status() {
  if (check::failures != 0) std::fprintf(stderr, "%d checks failed\n", check::failures);
  return check::failures != 0;
}
