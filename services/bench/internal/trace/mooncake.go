package trace

import (
	"encoding/json"
	"errors"
	"time"
)

// newMooncake parses JSON lines; what a line holds besides time and lengths is not looked at.
func newMooncake() parser {
	return func(line string) (Request, bool, error) {
		var record struct {
			Timestamp *float64 `json:"timestamp"` // ms
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			return Request{}, false, err
		}
		if record.Timestamp == nil || record.Input == nil || record.Output == nil {
			return Request{}, false, errors.New("timestamp, input_length or output_length is missing")
		}
		return Request{At: time.Duration(*record.Timestamp * 1e6), Prompt: *record.Input, Output: *record.Output}, true, nil
	}
}
