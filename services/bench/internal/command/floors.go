package command

import (
	"fmt"

	"github.com/millrace/millrace/services/bench/internal/floor"
)

const floorsUsage = "file of floors that fail the run; see bench/floors"

// readFloors reads the floors of a command; none where no file is named.
func readFloors(path, command string) (*floor.Set, error) {
	if path == "" {
		return nil, nil
	}
	set, err := floor.Read(path, command)
	if err != nil {
		return nil, fmt.Errorf("%w: --floors: %w", ErrUsage, err)
	}
	return &set, nil
}

// judge holds figures against floors; nil where there are none.
func judge(set *floor.Set, figure floor.Figure) *floor.Verdict {
	if set == nil {
		return nil
	}
	return set.Judge(figure)
}
