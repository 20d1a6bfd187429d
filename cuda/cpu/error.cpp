#include "error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

namespace mr {
namespace {

std::string format_message(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

// Returns the error for the case that no memory is left for another one. Its message fits the string's own storage, or was
// allocated when the library was loaded.
mr_error& out_of_memory() {
  static mr_error error{MR_RESOURCE_EXHAUSTED, 0, "out of host memory"};
  return error;
}

const mr_error& preloaded = out_of_memory();

mr_error* make_error(int32_t code, int64_t native, const std::string& message) noexcept {
  try {
    return new mr_error{code, native, message};
  } catch (...) {
    return &out_of_memory();
  }
}

}  // namespace

void fail(int32_t code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string message = format_message(format, arguments);
  va_end(arguments);
  throw Error(code, 0, std::move(message));
}

void fail_errno(int32_t code, int64_t error_number, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string message = format_message(format, arguments);
  va_end(arguments);
  message += ": " + std::system_category().message(static_cast<int>(error_number));
  throw Error(code, error_number, std::move(message));
}

mr_error* current_error() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return make_error(e.code, e.native, e.message);
  } catch (const std::bad_alloc&) {
    return &out_of_memory();
  } catch (const std::system_error& e) {
    return make_error(MR_INTERNAL, e.code().value(), e.what());
  } catch (const std::exception& e) {
    return make_error(MR_INTERNAL, 0, e.what());
  } catch (...) {
    return make_error(MR_INTERNAL, 0, "an exception of unknown type");
  }
}

void destroy_error(mr_error* error) noexcept {
  if (error != &preloaded) delete error;
}

}  // namespace mr
