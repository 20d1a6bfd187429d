package device

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Driver is the figures of the driver itself, measured without the engine's ABI.
type Driver struct {
	Bus  string  `json:"pci_bus"`
	Peak float64 `json:"memory_peak_bytes"` // by clock and width; 0: unknown
	// Allocations are microseconds by size; Copies are bytes a second by way and size.
	Allocations map[uint64]Allocation         `json:"allocations"`
	Copies      map[string]map[uint64]float64 `json:"copies"`
}

// Allocation is the time to allocate and free one block, in microseconds.
type Allocation struct {
	Driver float64 `json:"driver_us"`
	Pool   float64 `json:"pool_us"` // of the engine's pool, without zeroing
}

// runDriver runs the program and parses its output; nil without a program.
func runDriver(ctx context.Context, argv []string, largest uint64) (*Driver, error) {
	if len(argv) == 0 {
		return nil, nil
	}
	var output, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], slices.Concat(argv[1:], []string{"--largest", fmt.Sprint(largest)})...)
	cmd.Stdout, cmd.Stderr = &output, &problems
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", argv[0], err, strings.TrimSpace(problems.String()))
	}
	d, err := parseDriver(&output)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", argv[0], err)
	}
	return d, nil
}

// parseDriver parses the lines that cuda/bench/memory.cpp documents.
func parseDriver(r io.Reader) (*Driver, error) {
	d := &Driver{Allocations: map[uint64]Allocation{}, Copies: map[string]map[uint64]float64{}}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		line := lines.Text()
		var size uint64
		var way string
		var rate float64
		var a Allocation
		kind, rest, _ := strings.Cut(line, " ")
		var err error
		switch kind {
		case "gpu":
			d.Bus = strings.ToLower(rest)
		case "peak":
			_, err = fmt.Sscanf(rest, "%g", &d.Peak)
		case "allocate":
			_, err = fmt.Sscanf(rest, "%d %g %g", &size, &a.Driver, &a.Pool)
			d.Allocations[size] = a
		case "copy":
			_, err = fmt.Sscanf(rest, "%s %d %g", &way, &size, &rate)
			if d.Copies[way] == nil {
				d.Copies[way] = map[uint64]float64{}
			}
			d.Copies[way][size] = rate
		default:
			err = fmt.Errorf("unknown word %q", kind)
		}
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
	}
	if d.Bus == "" || len(d.Allocations) == 0 || len(d.Copies) != len(ways) {
		return nil, fmt.Errorf("it printed bus %q, %d allocations and %d directions of copies: want %d directions", d.Bus, len(d.Allocations),
			len(d.Copies), len(ways))
	}
	return d, nil
}

// best returns the largest rate of a direction; 0: not measured.
func (d *Driver) best(way string) (most float64) {
	if d != nil {
		for _, rate := range d.Copies[way] {
			most = max(most, rate)
		}
	}
	return most
}

// copied returns the rate of a direction and size; 0: not measured.
func (d *Driver) copied(way string, size uint64) float64 {
	if d == nil {
		return 0
	}
	return d.Copies[way][size]
}
