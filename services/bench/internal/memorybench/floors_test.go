package memorybench

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

func TestEveryFloorOfTheRepositoryIsAFigureOfAGPU(t *testing.T) {
	one := stats.Spread{Median: 1}
	r := &Report{Bus: Bus{Peak: 1}, Given: 1, Driver: &Driver{Peak: 1, Copies: map[string]map[uint64]float64{}}}
	for _, way := range ways {
		r.Driver.Copies[way] = map[uint64]float64{}
		memories := []string{pinned, pageable}
		if way == onDevice {
			memories = []string{""}
		}
		for size := uint64(smallest); size <= 1<<30; size *= step {
			r.Driver.Copies[way][size] = 1
			for _, memory := range memories {
				r.Copies = append(r.Copies, Copy{Name: copyName(way, memory, size), Way: way, Size: size, Rate: one})
			}
		}
	}
	for _, size := range poolSizes {
		r.Pool = append(r.Pool, Pool{Name: "pool/" + sizeName(size), On: one, Off: one, Bare: 1, Driver: 1})
	}
	r.shares()
	files, err := filepath.Glob("../../../../bench/floors/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		set, err := floor.Read(path, "memory")
		require.NoError(t, err)
		for _, f := range set.Floors {
			_, known := r.Figure(f.Row, f.Metric)
			require.True(t, known, "%s: %s names no figure", path, f)
		}
	}
}
