#pragma once

// The element types of payloads, and their names in the job file and in the plan. Pure.
//
// Called by: common/job, common/plan, common/wire and the data path. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace poseidon {

/// Has the same numbers as ElementType of data.proto.
enum class ElementType : std::uint32_t { kNone = 0, kFloat32 = 1, kBfloat16 = 2, kFloat16 = 3 };

/// Bytes of one element; 0 for kNone and for unknown types.
constexpr std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return 4;
    case ElementType::kBfloat16:
    case ElementType::kFloat16:
      return 2;
    case ElementType::kNone:
      break;
  }
  return 0;
}

/// "fp32", "bf16", "fp16": sync.wire_dtype in the job file, wire_dtype in plan.json.
constexpr std::string_view wire_dtype_name(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "fp32";
    case ElementType::kBfloat16:
      return "bf16";
    case ElementType::kFloat16:
      return "fp16";
    case ElementType::kNone:
      break;
  }
  return "none";
}

/// The inverse; nullopt for any other name.
constexpr std::optional<ElementType> wire_dtype_from_name(std::string_view name) {
  for (const auto type : {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}) {
    if (name == wire_dtype_name(type)) return type;
  }
  return std::nullopt;
}

}  // namespace poseidon
