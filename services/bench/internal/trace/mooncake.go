package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// newMooncake parses JSON lines; what a line holds besides time, lengths and blocks is not looked at.
func newMooncake() parser {
	return func(line string) (Request, bool, error) {
		var record struct {
			Timestamp *float64 `json:"timestamp"` // ms
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
			Blocks    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			return Request{}, false, err
		}
		if record.Timestamp == nil || record.Input == nil || record.Output == nil {
			return Request{}, false, errors.New("timestamp, input_length or output_length is missing")
		}
		if want := (*record.Input + BlockTokens - 1) / BlockTokens; record.Blocks != nil && len(record.Blocks) != want {
			return Request{}, false, fmt.Errorf("%d hash_ids for input_length %d: want %d, one for each %d tokens", len(record.Blocks),
				*record.Input, want, BlockTokens)
		}
		at := time.Duration(*record.Timestamp * float64(time.Millisecond))
		return Request{At: at, Prompt: *record.Input, Output: *record.Output, Blocks: record.Blocks}, true, nil
	}
}
