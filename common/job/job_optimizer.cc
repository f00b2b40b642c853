#include "common/job/job_optimizer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;
using ScheduleType = LearningRateSchedule::Type;

constexpr std::size_t kMaxMilestones = 10'000;
constexpr std::size_t kMaxTensorRules = 1000;

/// The keys of a schedule, and the types that have them.
struct ScheduleKey {
  const char* name;
  std::vector<ScheduleType> types;
};
const std::vector<ScheduleKey>& schedule_keys() {
  using Type = ScheduleType;
  static const std::vector<ScheduleKey> keys = {
      {"gamma", {Type::kStep, Type::kMultiStep, Type::kExponential, Type::kInverse}},
      {"power", {Type::kInverse, Type::kPolynomial}},
      {"minimum", {Type::kCosine}},
      {"end_iteration", {Type::kPolynomial, Type::kCosine}},
      {"step_iterations", {Type::kStep}},
      {"milestones_iterations", {Type::kMultiStep}}};
  return keys;
}

bool has_key(ScheduleType type, std::string_view name) {
  for (const ScheduleKey& key : schedule_keys()) {
    if (key.name != name) continue;
    return std::find(key.types.begin(), key.types.end(), type) != key.types.end();
  }
  return false;
}

void refuse_foreign_keys(JsonFields& fields, ScheduleType chosen) {
  for (const ScheduleKey& key : schedule_keys()) {
    if (has_key(chosen, key.name)) continue;
    const std::string types =
        absl::StrJoin(key.types, ", ", [](std::string* out, ScheduleType type) {
          out->append(str_cat("\"", schedule_name(type), "\""));
        });
    fields.refuse_foreign({key.name},
                          str_cat(key.types.size() == 1 ? "type " : "the types ", types),
                          schedule_name(chosen));
  }
}

absl::Status parse_schedule(const Json& json, std::string_view source, std::int64_t iterations,
                            LearningRateSchedule& spec) {
  JsonFields fields(json, source, "optimizer.schedule");
  std::vector<std::string> names;
  for (const ScheduleType type : all_schedules()) names.emplace_back(schedule_name(type));
  std::string name = "constant";
  fields.one_of("type", &name, names);
  for (const ScheduleType type : all_schedules()) {
    if (schedule_name(type) == name) spec.type = type;
  }
  fields.integer("warmup_iterations", &spec.warmup_iterations, 0, kMaxIterations);
  const auto wants = [&spec](std::string_view key) { return has_key(spec.type, key); };
  // No default fits most jobs.
  if (spec.type == ScheduleType::kExponential || spec.type == ScheduleType::kInverse) {
    fields.require("gamma");
  }
  if (spec.type == ScheduleType::kInverse) fields.require("power");
  if (wants("gamma")) fields.number("gamma", &spec.gamma, {.min = 0.0});
  if (wants("power")) fields.number("power", &spec.power, {.min = 0.0});
  if (wants("minimum")) fields.number("minimum", &spec.minimum, {.min = 0.0});
  if (wants("end_iteration")) {
    spec.end_iteration = iterations;
    fields.integer("end_iteration", &spec.end_iteration, 1, kMaxIterations);
  }
  if (wants("step_iterations")) {
    fields.require("step_iterations");
    fields.integer("step_iterations", &spec.step_iterations, 1, kMaxIterations);
  }
  if (wants("milestones_iterations")) {
    fields.require("milestones_iterations");
    fields.integers("milestones_iterations", &spec.milestones_iterations, 1, kMaxIterations, 1,
                    kMaxMilestones);
  }
  refuse_foreign_keys(fields, spec.type);
  return fields.finish();
}

Json schedule_to_json(const LearningRateSchedule& schedule) {
  Json json = {{"type", schedule_name(schedule.type)},
               {"warmup_iterations", schedule.warmup_iterations}};
  const auto put = [&](const char* key, const Json& value) {
    if (has_key(schedule.type, key)) json[key] = value;
  };
  put("gamma", schedule.gamma);
  put("power", schedule.power);
  put("minimum", schedule.minimum);
  put("end_iteration", schedule.end_iteration);
  put("step_iterations", schedule.step_iterations);
  put("milestones_iterations", schedule.milestones_iterations);
  return json;
}

absl::Status parse_rule(const Json& json, std::string_view source, std::string_view path,
                        OptimizerType type, TensorRule& rule) {
  JsonFields fields(json, source, path);
  fields.require("match");
  fields.string("match", &rule.match);
  fields.number("learning_rate_multiplier", &rule.multipliers.learning_rate, {.min = 0.0});
  fields.number("weight_decay_multiplier", &rule.multipliers.weight_decay, {.min = 0.0});
  if (type == OptimizerType::kLars) {
    fields.boolean("trust_ratio", &rule.multipliers.trust_ratio);
  } else if (fields.value("trust_ratio") != nullptr) {
    fields.refuse("trust_ratio", "belongs to optimizer.type \"lars\"; remove it");
  }
  return fields.finish();
}

void parse_rules(JsonFields& fields, std::string_view source, OptimizerType type,
                 std::vector<TensorRule>& rules) {
  const Json* array = fields.array("layers", "rules", 0, kMaxTensorRules);
  if (array == nullptr) return;
  for (const Json& json : *array) {
    const std::string path = str_cat("optimizer.layers[", rules.size(), "]");
    fields.add(parse_rule(json, source, path, type, rules.emplace_back()));
  }
}

Json rules_to_json(OptimizerType type, const std::vector<TensorRule>& rules) {
  Json array = Json::array();
  for (const TensorRule& rule : rules) {
    array.push_back({{"match", rule.match},
                     {"learning_rate_multiplier", rule.multipliers.learning_rate},
                     {"weight_decay_multiplier", rule.multipliers.weight_decay}});
    if (type == OptimizerType::kLars) array.back()["trust_ratio"] = rule.multipliers.trust_ratio;
  }
  return array;
}

}  // namespace

absl::Status parse_optimizer(const Json& json, std::string_view source, std::int64_t iterations,
                             OptimizerSpec& spec) {
  JsonFields fields(json, source, "optimizer");
  std::string type = "sgd";
  fields.one_of("type", &type, {"sgd", "adam", "adamw", "lars", "sum"});
  if (type == "sum") {
    spec.type = OptimizerType::kSum;
    spec.learning_rate = 0.0;
    fields.refuse_foreign(
        {"learning_rate", "weight_decay", "momentum", "nesterov", "beta1", "beta2", "epsilon",
         "trust_coefficient", "clip_norm", "rates", "schedule", "layers"},
        "types that step parameters", type);
    return fields.finish();
  }
  fields.number("learning_rate", &spec.learning_rate, {.min = 0.0});
  fields.number("weight_decay", &spec.weight_decay, {.min = 0.0});
  const NumberRange fraction = {.min = 0.0, .max = 1.0, .max_excluded = true};
  if (type == "sgd" || type == "lars") {
    spec.type = type == "sgd" ? OptimizerType::kSgd : OptimizerType::kLars;
    fields.number("momentum", &spec.momentum, fraction);
    fields.refuse_foreign({"beta1", "beta2", "epsilon"}, "the types \"adam\" and \"adamw\"", type);
  } else {
    spec.type = type == "adam" ? OptimizerType::kAdam : OptimizerType::kAdamW;
    fields.number("beta1", &spec.beta1, fraction);
    fields.number("beta2", &spec.beta2, fraction);
    fields.number("epsilon", &spec.epsilon, {.min = 0.0});
    fields.refuse_foreign({"momentum"}, "the types \"sgd\" and \"lars\"", type);
  }
  if (type == "sgd") {
    fields.boolean("nesterov", &spec.nesterov);
  } else {
    fields.refuse_foreign({"nesterov"}, "type \"sgd\"", type);
  }
  if (type == "lars") {
    fields.number("trust_coefficient", &spec.trust_coefficient, {.min = 0.0});
  } else {
    fields.refuse_foreign({"trust_coefficient"}, "type \"lars\"", type);
  }
  fields.number("clip_norm", &spec.clip_norm, {.min = 0.0});
  std::string rates = "job";
  fields.one_of("rates", &rates, {"job", "program"});
  spec.rates_by_program = rates == "program";
  if (spec.rates_by_program) {
    fields.refuse_foreign({"clip_norm", "schedule", "layers"}, "rates \"job\"", rates);
    if (type == "lars") fields.refuse("rates", "\"program\" is not possible with type \"lars\"");
  }
  if (const Json* schedule = fields.value("schedule")) {
    fields.add(parse_schedule(*schedule, source, iterations, spec.schedule));
  }
  parse_rules(fields, source, spec.type, spec.layers);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  const absl::Status valid = validate(spec);
  if (valid.ok()) return valid;
  return absl::Status(valid.code(), str_cat(source, ": ", valid.message()));
}

Json optimizer_to_json(const OptimizerSpec& spec) {
  if (spec.type == OptimizerType::kSum) return {{"type", "sum"}};
  Json json = {{"learning_rate", spec.learning_rate},
               {"weight_decay", spec.weight_decay},
               {"schedule", schedule_to_json(spec.schedule)}};
  if (spec.clip_norm > 0.0) json["clip_norm"] = spec.clip_norm;
  if (spec.rates_by_program) {
    json["rates"] = "program";
    json.erase("schedule");
  }
  if (!spec.layers.empty()) json["layers"] = rules_to_json(spec.type, spec.layers);
  if (spec.type == OptimizerType::kSgd) {
    json["type"] = "sgd";
    json["momentum"] = spec.momentum;
    json["nesterov"] = spec.nesterov;
  } else if (spec.type == OptimizerType::kLars) {
    json["type"] = "lars";
    json["momentum"] = spec.momentum;
    json["trust_coefficient"] = spec.trust_coefficient;
  } else {
    json["type"] = spec.type == OptimizerType::kAdam ? "adam" : "adamw";
    json["beta1"] = spec.beta1;
    json["beta2"] = spec.beta2;
    json["epsilon"] = spec.epsilon;
  }
  return json;
}

}  // namespace poseidon
