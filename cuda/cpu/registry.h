// registry: handles that can be checked. A handle is an opaque pointer that is never followed: it holds the kind of the
// object, a place in a table and the generation of that place, so that a freed or foreign handle is found out and never
// undefined behaviour.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.h"

namespace mr {

// Safe for use by any number of threads. An object taken out lives on until the calls that still use it have returned.
// kKind (1 to 255) distinguishes registries.
template <class Handle, class Object, uint8_t kKind>
class Registry {
 public:
  explicit Registry(const char* noun) : noun_(noun) {}

  Handle* add(std::shared_ptr<Object> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t index = free_;
    if (index == kNone) {
      if (places_.size() == kMost) fail(MR_RESOURCE_EXHAUSTED, "too many live handles of one kind: %zu", kMost);
      index = places_.size();
      places_.emplace_back();
    } else {
      free_ = places_[index].next;
    }
    places_[index].object = std::move(object);
    return encode(index, places_[index].generation);
  }

  // Throws INVALID_ARGUMENT for null and for what never was such a handle, FAILED_PRECONDITION for one given back.
  std::shared_ptr<Object> get(const Handle* handle) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return places_[find_locked(handle)].object;
  }

  // Takes the object out: the handle is stale from now on.
  std::shared_ptr<Object> take(const Handle* handle) {
    std::shared_ptr<Object> object = withdraw(handle);
    drop(handle);
    return object;
  }

  // The same in two steps, for a release that may be refused between them: after withdraw, every other call finds the handle
  // released. The caller of withdraw then calls drop, which makes the handle stale, or restore, which undoes withdraw.
  std::shared_ptr<Object> withdraw(const Handle* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(places_[find_locked(handle)].object, nullptr);
  }
  void drop(const Handle* handle) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t index = index_of(handle);
    Place& place = places_[index];
    if (++place.generation == 0) return;  // a place whose generations are used up is not used again
    place.next = free_;
    free_ = index;
  }
  void restore(const Handle* handle, std::shared_ptr<Object> object) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_[index_of(handle)].object = std::move(object);
  }

 private:
  struct Place {
    std::shared_ptr<Object> object;
    uint32_t generation = 1;
    size_t next = kNone;
  };
  static constexpr size_t kNone = SIZE_MAX, kMost = size_t{1} << 24;
  static_assert(sizeof(uintptr_t) == 8, "a handle holds 8 bits of kind, 32 of generation and 24 of place");

  static Handle* encode(size_t index, uint32_t generation) {
    return reinterpret_cast<Handle*>(uintptr_t{kKind} << 56 | uintptr_t{generation} << 24 | index);
  }

  static size_t index_of(const Handle* handle) { return reinterpret_cast<uintptr_t>(handle) & (kMost - 1); }

  size_t find_locked(const Handle* handle) const {
    const uintptr_t bits = reinterpret_cast<uintptr_t>(handle);
    if (bits == 0) fail(MR_INVALID_ARGUMENT, "the %s is null", noun_);
    const size_t index = index_of(handle);
    const uint32_t generation = static_cast<uint32_t>(bits >> 24);
    if (bits >> 56 != kKind || index >= places_.size() || generation > places_[index].generation)
      fail(MR_INVALID_ARGUMENT, "%p is no %s of this engine", static_cast<const void*>(handle), noun_);
    if (places_[index].generation != generation || places_[index].object == nullptr)
      fail(MR_FAILED_PRECONDITION, "the %s has been given back already", noun_);
    return index;
  }

  const char* const noun_;
  mutable std::mutex mutex_;
  std::vector<Place> places_;
  size_t free_ = kNone;
};

}  // namespace mr
