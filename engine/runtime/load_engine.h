#pragma once

#include <memory>
#include <span>
#include <string>

#include "models/family.h"
#include "reprise/engine.h"

namespace reprise {

// Engine::load with the families to choose from.
std::unique_ptr<Engine> load_engine(const std::string& checkpoint_dir, EngineConfig config,
                                    std::span<const Family> families);

}  // namespace reprise
