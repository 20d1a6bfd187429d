package vectorfile_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
)

// golden returns a file that numpy wrote.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "numpy", name))
	require.NoError(t, err)
	return data
}

func rowsOf(name string, data []byte) (*vectorfile.Matrix, error) {
	return vectorfile.NewRows(name, bytes.NewReader(data), int64(len(data)))
}

func codesOf(name string, data []byte) (*vectorfile.Matrix, error) {
	return vectorfile.NewCodes(name, bytes.NewReader(data), int64(len(data)))
}

// all reads a matrix chunk rows at a time.
func all(t testing.TB, m *vectorfile.Matrix, chunk int) []byte {
	t.Helper()
	got := make([]byte, 0, m.Rows()*int64(m.RowBytes()))
	// A rest that is too short for a row is left alone.
	buffer := make([]byte, chunk*m.RowBytes()+m.RowBytes()-1)
	for first := int64(0); ; {
		n, err := m.ReadRows(buffer, first)
		if errors.Is(err, io.EOF) {
			require.Equal(t, m.Rows(), first)
			return got
		}
		require.NoError(t, err)
		require.Equal(t, min(int64(chunk), m.Rows()-first), int64(n))
		got = append(got, buffer[:n*m.RowBytes()]...)
		first += int64(n)
	}
}

// refused checks that err is a FormatError of a kind at an offset, and returns its text.
func refused(t testing.TB, err, kind error, offset int64) string {
	t.Helper()
	var where *vectorfile.FormatError
	require.ErrorAs(t, err, &where)
	require.ErrorIs(t, err, kind, "%v", err)
	require.Equal(t, offset, where.Offset, "%v", err)
	require.Contains(t, where.What, ": ", "what to do is said behind a colon")
	return where.What
}

// numbers returns the same as in testdata/numpy/write.py: n elements from first on.
func numbers(e vectorfile.ElementType, first, n int) []byte {
	var b []byte
	for i := first; i < first+n; i++ {
		switch e {
		case vectorfile.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(i)))
		case vectorfile.F16:
			// -3 to 8 in half precision.
			b = binary.LittleEndian.AppendUint16(b, map[int]uint16{
				-3: 0xc200, -2: 0xc000, -1: 0xbc00, 0: 0, 1: 0x3c00, 2: 0x4000, 3: 0x4200, 4: 0x4400, 5: 0x4500, 6: 0x4600, 7: 0x4700, 8: 0x4800,
			}[i])
		case vectorfile.I8, vectorfile.U8:
			b = append(b, byte(i))
		case vectorfile.U16:
			b = binary.LittleEndian.AppendUint16(b, uint16(i))
		default:
			b = binary.LittleEndian.AppendUint32(b, uint32(i))
		}
	}
	return b
}

// prefixedFile puts the dimension before each row of rowBytes.
func prefixedFile(rows []byte, rowBytes, dimension int) []byte {
	var file []byte
	for ; len(rows) > 0; rows = rows[rowBytes:] {
		file = binary.LittleEndian.AppendUint32(file, uint32(dimension))
		file = append(file, rows[:rowBytes]...)
	}
	return file
}

// binFile puts the number of rows and the dimension before all rows.
func binFile(rows []byte, n, dimension int) []byte {
	file := binary.LittleEndian.AppendUint32(nil, uint32(n))
	file = binary.LittleEndian.AppendUint32(file, uint32(dimension))
	return append(file, rows...)
}

// npyFile is an array of version 1.0 with any header.
func npyFile(header string, data []byte) []byte {
	file := append([]byte("\x93NUMPY"), 1, 0)
	file = binary.LittleEndian.AppendUint16(file, uint16(len(header)))
	return append(append(file, header...), data...)
}

func npyHeader(descr, shape string) string {
	return fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", descr, shape)
}

func noise(seed uint64, n int) []byte {
	random := rand.NewChaCha8([32]byte{byte(seed)})
	b := make([]byte, n)
	_, _ = random.Read(b)
	return b
}
