// Report: the table at the end of every experiment.
//
// A report shows our figures beside the published ones, as text and as JSON. Each row is labeled
// with how it was obtained.
#ifndef GPIPE_EXPERIMENTS_FRAME_REPORT_H_
#define GPIPE_EXPERIMENTS_FRAME_REPORT_H_

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::experiments {

// Ordered JSON keeps its fields in the order in which a person would read them.
using Json = nlohmann::ordered_json;

// How the figures of a row were obtained.
enum class Origin {
  kMeasured,     // really run here
  kInterrupted,  // run here until the user stopped it: what was reached
  kFailed,       // run here until an error, which the note reports
  kPlanned,      // computed on the meta device at full size
  kSimulated,    // the schedule at full size with profiled costs
  kPublished,    // the row holds published figures only
  kNotRun,       // not run here; the row's note says why
};

// The origin in words: "measured", "interrupted", "failed", "planned", "simulated", "published" or
// "not run".
std::string to_text(Origin origin);

// A figure that the rows of a report have.
struct Column {
  std::string key;                   // the key in the JSON, e.g. "top1_error_percent"
  std::string heading;               // in the table, with the unit, e.g. "top-1 error (%)"
  std::vector<std::string> sources;  // whose published figures are shown beside ours
  // The source that ours are divided by, in a column of its own. Measured figures are compared only
  // at the published size: the setting "scale" is full and "changed" is not set. Empty: no such
  // column.
  std::string compared_with = {};
};

// The result of a variant here.
struct Outcome {
  Origin origin = Origin::kNotRun;
  // How the figures are, or were to be, obtained: kMeasured, kPlanned or kSimulated.
  Origin way = Origin::kMeasured;
  std::map<std::string, double> figures;  // by Column::key
  std::string note;                       // what was run, or why nothing was
  // For the JSON: the settings (batch size, balance, ...), and the results of each epoch. The
  // report itself reads four settings: "scale", "changed", "cores" (the cores that a measured row
  // on the CPU had: a larger ratio is left out, with a note) and "disturbed" (true: other work ran,
  // and the row's label says so).
  Json settings = Json::object();
  Json epochs = Json::array();
};

struct PublishedRow {
  std::string experiment;
  // [key][source] as published, for example "21.99±0.13".
  std::map<std::string, std::map<std::string, std::string>> figures;
  // Why there is nothing to run for it here; empty if there is something.
  std::string no_counterpart;
};

// A published table.
struct PublishedTable {
  std::string title;
  std::vector<Column> columns;
  std::vector<PublishedRow> rows;
  // The column of ratios is `ratio_of` divided by the same figure of the row `reference`, obtained
  // in the same way, as in the published table. Empty: there is none.
  std::string ratio;
  std::string ratio_of;
  std::string reference;
};

// Three significant digits, no exponent; all digits before the point: "0.651", "22.0", "2559".
std::string three_digits(double value);

// An outcome and the row of the table that it belongs to.
struct Result {
  std::string experiment;
  Outcome outcome;
};

// Where a report comes from, for readers of its JSON.
struct ReportSource {
  std::string name;         // the experiment's name: "unet_speed"
  std::string edition;      // the published table's: "" (the current one), "2019-06"
  std::string command;      // as typed
  std::string environment;  // the build and the machine
};

// Thread-safety: none.
//
// Example:
//   Report report(table, results);
//   std::cout << report.to_text(80);
class Report {
 public:
  // The rows keep the table's order. A row stands once for each of its results, in the order given.
  // A row without a result is labeled not run, "not asked for (--experiment)".
  //
  // Throws std::invalid_argument if the table names a column or a source that it does not have; if
  // a result belongs to no row, or its row has another result that was obtained in the same way; if
  // a result has a figure without a column, a figure although its origin says that it has none, or
  // no figure although its origin says that it has one; if its origin contradicts its way; and if
  // it is not run or failed but has no note. So only figures that were obtained are shown, and a
  // note explains each missing one.
  Report(PublishedTable table, std::vector<Result> results);

  // A line below the table, such as the machine that measured it.
  void add_remark(const std::string& remark);

  // The rows grouped by way: published, planned, simulated, measured. Published figures stand
  // beside rows of the published size only; an experiment that has none of these has a line of its
  // own for them, labeled published. Rows that were not run stand below, with their notes. The JSON
  // has all rows.
  //
  // Aligned for a fixed-width font, in at most `columns` columns if a single figure fits them:
  // figures that do not fit side by side go below each other. "-" where there is no figure. Notes
  // and remarks follow, wrapped. Ends with a newline.
  std::string to_text(std::size_t columns) const;

  // {"name", "edition", "title", "columns": [{"key", "heading", "sources", "compared_with"}],
  // "ratio": {"key", "of", "reference"} or null, "remarks", "environment", "command", "rows":
  // [{"experiment", "origin", "way", "note", "settings", "epochs", "figures": {key: {"ours": number
  // or null, "published": {source: figure}, "published_text": {source: text}, "compared": number
  // or null}}}]}, indented. A published figure is a number, {"value", "plus_minus"}, or, if it is
  // not a number, a text. A value that is not finite (a diverged loss) is null.
  std::string to_json(const ReportSource& source = {}) const;

 private:
  struct Row {
    std::size_t published;  // the number of its row in the table
    Outcome outcome;
    std::string label;  // its origin, with its way where that is not the same
  };
  // A line of the text's table.
  struct Line {
    std::size_t published;
    const Row* row;  // null: published figures only
    Origin way;
    std::string label;
    bool begins_group = false;
  };

  std::string notes(std::size_t columns) const;
  std::vector<Line> lines() const;
  // The figure of `source` that the line shows; empty: none.
  std::string published_in(const Line& line, const Column& column, const std::string& source,
                           const std::vector<Line>& lines) const;

  PublishedTable table_;
  std::vector<Row> rows_;
  std::vector<std::string> remarks_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_REPORT_H_
