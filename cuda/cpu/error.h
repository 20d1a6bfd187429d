// error: how a function of the CPU engine fails. Inside, by throwing Error through fail(); at the edge, guard() turns
// whatever was thrown into an mr_error, so that no C++ exception crosses the ABI.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "millrace/engine.h"

struct mr_error {
  int32_t code;
  int64_t native;
  std::string message;
};

namespace mr {

class Error : public std::exception {
 public:
  Error(int32_t code, int64_t native, std::string message)
      : code(code), native(native), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }

  const int32_t code;    // MR_*
  const int64_t native;  // errno, or 0
  const std::string message;
};

// Throws an Error with a printf-formatted message: lower case, saying what, where and what to do.
[[noreturn]] void fail(int32_t code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Throws an Error that carries an errno; its text is appended to the message.
[[noreturn]] void fail_errno(int32_t code, int64_t error_number, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// The exception being handled as an mr_error that the caller owns; bad_alloc becomes RESOURCE_EXHAUSTED, anything
// unknown INTERNAL. Never throws: without memory it gives a static object that error_destroy leaves alone.
mr_error* current_error() noexcept;
void destroy_error(mr_error* error) noexcept;  // accepts null

// Runs f() and gives null, or the error it threw.
template <class F>
mr_error* guard(F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (...) {
    return current_error();
  }
}

}  // namespace mr
