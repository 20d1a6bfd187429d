package vectorfile_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
)

var byDescr = map[string]vectorfile.ElementType{
	"<f4": vectorfile.F32, "<f2": vectorfile.F16, "|i1": vectorfile.I8, "|u1": vectorfile.U8, "<u2": vectorfile.U16, "<u4": vectorfile.U32,
}

func TestArraysAreWrittenAsNumpyWritesThem(t *testing.T) {
	for descr, e := range byDescr {
		first := -3
		if descr[1] == 'u' {
			first = 0
		}
		for name, shape := range map[string][]int64{descr[1:] + ".npy": {3, 4}, descr[1:] + "-one-dimension.npy": {5}} {
			n := int(shape[0])
			if len(shape) == 2 {
				n *= int(shape[1])
			}
			data := numbers(e, first, n)
			for _, piece := range []int{1, 7, len(data)} {
				var file bytes.Buffer
				w, err := vectorfile.NewNpyWriter(&file, e, shape...)
				require.NoError(t, err)
				writePieces(t, w, data, piece)
				require.NoError(t, w.Close())
				require.Equal(t, golden(t, name), file.Bytes(), name)
			}
		}
	}
}

func TestHeadsOfLargeArraysAreThoseOfNumpy(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(string(golden(t, "heads.txt"))), "\n")
	require.Len(t, lines, 48)
	for _, line := range lines {
		fields := strings.Fields(line)
		var shape []int64
		for _, length := range strings.Split(fields[1], ",") {
			n, err := strconv.ParseInt(length, 10, 64)
			require.NoError(t, err)
			shape = append(shape, n)
		}
		var file bytes.Buffer
		w, err := vectorfile.NewNpyWriter(&file, byDescr[fields[0]], shape...)
		require.NoError(t, err, line)
		if err := w.Close(); shape[0] > 0 {
			require.ErrorIs(t, err, vectorfile.ErrWriter)
			continue // The head is still in the writer's buffer; see below.
		}
		require.Equal(t, fields[2], hex.EncodeToString(file.Bytes()), line)
	}
	// A writer that gets enough bytes to empty its buffer.
	for _, line := range lines {
		fields := strings.Fields(line)
		if fields[1] != "1000000000,128" {
			continue
		}
		var file bytes.Buffer
		w, err := vectorfile.NewNpyWriter(&file, byDescr[fields[0]], 1_000_000_000, 128)
		require.NoError(t, err)
		_, err = w.Write(make([]byte, 1<<20))
		require.NoError(t, err)
		require.Equal(t, fields[2], hex.EncodeToString(file.Bytes()[:len(fields[2])/2]))
	}
}

func TestRowsArePutBehindTheirDimension(t *testing.T) {
	for name, e := range map[string]vectorfile.ElementType{"f4.fvecs": vectorfile.F32, "i4.ivecs": vectorfile.U32} {
		data := numbers(e, -3, 12)
		for _, piece := range []int{1, 7, 16, 17, len(data)} {
			var file bytes.Buffer
			w, err := vectorfile.NewVecsWriter(&file, 4)
			require.NoError(t, err)
			writePieces(t, w, data, piece)
			require.NoError(t, w.Close())
			require.Equal(t, golden(t, name), file.Bytes(), name)
		}
	}
	var file bytes.Buffer
	w, err := vectorfile.NewVecsWriter(&file, vectorfile.MaxDimension)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.Empty(t, file.Bytes())
}

func writePieces(t *testing.T, w interface{ Write(p []byte) (int, error) }, data []byte, piece int) {
	t.Helper()
	for len(data) > 0 {
		n, err := w.Write(data[:min(piece, len(data))])
		require.NoError(t, err)
		require.Equal(t, min(piece, len(data)), n)
		data = data[n:]
	}
}

func TestWritersRefuseWhatNoFileHolds(t *testing.T) {
	var file bytes.Buffer
	for name, tc := range map[string]struct {
		e     vectorfile.ElementType
		shape []int64
	}{
		"BF16":              {vectorfile.BF16, []int64{1, 2}},
		"no type":           {0, []int64{1, 2}},
		"no length":         {vectorfile.F32, nil},
		"three lengths":     {vectorfile.F32, []int64{1, 2, 3}},
		"a negative length": {vectorfile.F32, []int64{-1, 2}},
		"an overflow":       {vectorfile.F32, []int64{1 << 31, 1 << 31}},
		"a huge length":     {vectorfile.F16, []int64{math.MaxInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := vectorfile.NewNpyWriter(&file, tc.e, tc.shape...)
			require.ErrorIs(t, err, vectorfile.ErrWriter)
		})
	}
	for _, dimension := range []int{0, -1, 65_537} {
		_, err := vectorfile.NewVecsWriter(&file, dimension)
		require.ErrorIs(t, err, vectorfile.ErrWriter)
	}
	require.Empty(t, file.Bytes())
}

func TestWritersCountWhatTheyGet(t *testing.T) {
	var file bytes.Buffer
	w, err := vectorfile.NewNpyWriter(&file, vectorfile.F32, 2, 3)
	require.NoError(t, err)
	n, err := w.Write(make([]byte, 25))
	require.Zero(t, n)
	require.ErrorIs(t, err, vectorfile.ErrWriter)
	_, again := w.Write(make([]byte, 1))
	require.Equal(t, err, again, "the first error stays")
	require.Equal(t, err, w.Close())

	w, err = vectorfile.NewNpyWriter(&file, vectorfile.F32, 2, 3)
	require.NoError(t, err)
	_, err = w.Write(make([]byte, 23))
	require.NoError(t, err)
	require.ErrorContains(t, w.Close(), "1 bytes of the shape were not written")

	v, err := vectorfile.NewVecsWriter(&file, 3)
	require.NoError(t, err)
	_, err = v.Write(make([]byte, 13))
	require.NoError(t, err)
	require.ErrorContains(t, v.Close(), "11 bytes of the last row were not written")
}

// full is a device without room.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWritersPassOnWhatTheDeviceSays(t *testing.T) {
	w, err := vectorfile.NewNpyWriter(full{}, vectorfile.U8, 5)
	require.NoError(t, err)
	_, err = w.Write(make([]byte, 5))
	require.NoError(t, err)
	require.ErrorIs(t, w.Close(), errFull)
	v, err := vectorfile.NewVecsWriter(full{}, 1)
	require.NoError(t, err)
	_, err = v.Write(make([]byte, 1<<20))
	require.ErrorIs(t, err, errFull)
	require.ErrorIs(t, v.Close(), errFull)
}
