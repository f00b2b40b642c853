#pragma once

// For tests: a data set that wraps another one; a test overrides what it changes.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/formats/dataset.h"

namespace poseidon {

class DatasetAround : public Dataset {
 public:
  explicit DatasetAround(std::shared_ptr<const Dataset> inner) : inner_(std::move(inner)) {}
  std::int64_t size() const override { return inner_->size(); }
  const Shape& sample_shape() const override { return inner_->sample_shape(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<std::string>& class_names() const override { return inner_->class_names(); }
  std::string sample_name(std::int64_t index) const override { return inner_->sample_name(index); }
  absl::Status read(std::int64_t index, EncodedSample& sample) const override {
    return inner_->read(index, sample);
  }

 private:
  const std::shared_ptr<const Dataset> inner_;
};

}  // namespace poseidon
