// JPEG and PNG: header, then the whole image or a part of it, grey or in colour. The first byte
// says which.

#include "common/check.h"
#include "tests/fuzz/input.h"
#include "worker/data/image.h"
#include "worker/data/image_decoder.h"

namespace {
/// Larger ones are within our bounds, but would make this slow instead of thorough.
constexpr std::int64_t kMaxPixels = 1 << 16;
}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  fuzz::Input input(data, size);
  const std::uint8_t how = input.byte();
  const std::vector<std::uint8_t> file(input.rest().begin(), input.rest().end());
  static ImageDecoder decoder;  // as in use: one image after the other
  const auto opened = decoder.open(file);
  if (!opened.ok()) {
    POSEIDON_CHECK(opened.status().code() == absl::StatusCode::kDataLoss, "as the header says");
    return 0;
  }
  if (opened->height * opened->width > kMaxPixels) return 0;
  Region region{.top = 0, .left = 0, .height = opened->height, .width = opened->width};
  if (how % 4 >= 2) {
    region = {.top = opened->height / 3,
              .left = opened->width / 3,
              .height = (opened->height + 2) / 3,
              .width = (opened->width + 2) / 3};
  }
  Image image;
  const absl::Status decoded = decoder.decode(region, how % 2 == 0 ? 3 : 1, image);
  POSEIDON_CHECK(decoded.ok() || decoded.code() == absl::StatusCode::kDataLoss,
                 "as the header says");
  return 0;
}
