#include "experiments/common/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

// ordered: the JSON keeps the order in which a person would read it.
using Json = nlohmann::ordered_json;

// Columns that the text takes on screen: continuation bytes of UTF-8 take none ("21.99±0.13").
std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string pad(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, display_width(text)), ' ');
  return right ? space + text : text + space;
}

std::string number(double value, int precision) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", precision, value);
  return text;
}

bool has_own_figures(Origin origin) {
  return origin == Origin::kMeasured || origin == Origin::kPlanned || origin == Origin::kSimulated;
}

}  // namespace

std::string to_text(Origin origin) {
  switch (origin) {
    case Origin::kMeasured:
      return "measured";
    case Origin::kPlanned:
      return "planned";
    case Origin::kSimulated:
      return "simulated";
    case Origin::kPublished:
      return "published";
    case Origin::kNotRun:
      return "not run";
  }
  throw std::invalid_argument("unknown origin");
}

Report::Report(std::string title, std::vector<Column> columns)
    : title_(std::move(title)), columns_(std::move(columns)) {}

void Report::add(Row row) {
  bool own_figure = false;
  for (const auto& [key, figure] : row.figures) {
    const auto column = std::find_if(columns_.begin(), columns_.end(),
                                     [&key = key](const Column& c) { return c.key == key; });
    if (column == columns_.end()) {
      throw std::invalid_argument("row " + row.experiment + ": the report has no column " + key);
    }
    for (const auto& [source, text] : figure.published) {
      const std::vector<std::string>& known = column->sources;
      if (std::find(known.begin(), known.end(), source) == known.end()) {
        throw std::invalid_argument("row " + row.experiment + ": column " + key +
                                    " has no source " + source);
      }
    }
    own_figure = own_figure || figure.ours.has_value();
  }
  if (own_figure != has_own_figures(row.origin)) {
    throw std::invalid_argument(
        "row " + row.experiment + " is labelled " + gpipe::experiments::to_text(row.origin) +
        (own_figure ? " but has a figure of ours" : " but has no figure of ours"));
  }
  if (row.origin == Origin::kNotRun && row.note.empty()) {
    throw std::invalid_argument("row " + row.experiment + " was not run: its note must say why");
  }
  rows_.push_back(std::move(row));
}

void Report::add_remark(const std::string& remark) { remarks_.push_back(remark); }

std::string Report::to_text() const {
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string> heading = {"experiment", "origin"};
  for (const Column& column : columns_) {
    heading.push_back(column.heading);
    for (const std::string& source : column.sources) heading.push_back(source);
  }
  lines.push_back(heading);
  for (const Row& row : rows_) {
    std::vector<std::string> line = {row.experiment, gpipe::experiments::to_text(row.origin)};
    for (const Column& column : columns_) {
      const auto figure = row.figures.find(column.key);
      const bool present = figure != row.figures.end();
      line.push_back(present && figure->second.ours ? number(*figure->second.ours, column.precision)
                                                    : "-");
      for (const std::string& source : column.sources) {
        const bool published = present && figure->second.published.count(source) > 0;
        line.push_back(published ? figure->second.published.at(source) : "-");
      }
    }
    lines.push_back(line);
  }
  std::vector<std::size_t> widths(heading.size(), 0);
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(line[i]));
    }
  }
  std::string text = title_ + "\n\n";
  for (std::size_t l = 0; l < lines.size(); ++l) {
    for (std::size_t i = 0; i < lines[l].size(); ++i) {
      if (i > 0) text += " | ";
      text += pad(lines[l][i], widths[i], i >= 2);
    }
    const std::string& note = l == 0 ? std::string() : rows_[l - 1].note;
    if (l == 0) {
      text += " | note\n";
      for (std::size_t i = 0; i < widths.size(); ++i) {
        text += std::string(widths[i] + (i > 0 ? 2 : 1), '-') + "+";
      }
      text += "-----";
    } else {
      text += " | " + note;
    }
    text += "\n";
  }
  if (!remarks_.empty()) text += "\n";
  for (const std::string& remark : remarks_) text += remark + "\n";
  return text;
}

std::string Report::to_json() const {
  Json json;
  json["title"] = title_;
  json["remarks"] = remarks_;
  json["rows"] = Json::array();
  for (const Row& row : rows_) {
    Json figures = Json::object();
    for (const Column& column : columns_) {
      const auto found = row.figures.find(column.key);
      if (found == row.figures.end()) continue;
      const std::optional<double>& ours = found->second.ours;
      Json figure;
      figure["ours"] = ours && std::isfinite(*ours) ? Json(*ours) : Json(nullptr);
      figure["published"] = found->second.published;
      figures[column.key] = figure;
    }
    Json settings = Json::object();
    for (const auto& [key, value] : row.settings) settings[key] = value;
    json["rows"].push_back({{"experiment", row.experiment},
                            {"origin", gpipe::experiments::to_text(row.origin)},
                            {"note", row.note},
                            {"settings", settings},
                            {"figures", figures}});
  }
  return json.dump(2) + "\n";
}

}  // namespace gpipe::experiments
