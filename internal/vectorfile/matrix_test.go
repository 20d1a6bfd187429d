package vectorfile_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
)

// endings names every format of rows with its element type.
var endings = map[string]vectorfile.ElementType{
	"f4.npy": vectorfile.F32, "f2.npy": vectorfile.F16, "i1.npy": vectorfile.I8, "u1.npy": vectorfile.U8,
	".fvecs": vectorfile.F32, ".bvecs": vectorfile.U8,
	".fbin": vectorfile.F32, ".f16bin": vectorfile.F16, ".u8bin": vectorfile.U8, ".i8bin": vectorfile.I8,
}

// write makes a file of that format.
func write(t testing.TB, format string, e vectorfile.ElementType, rows []byte, n, dimension int) []byte {
	t.Helper()
	switch {
	case format[1:] == "fvecs" || format[1:] == "bvecs":
		return prefixedFile(rows, dimension*e.Size(), dimension)
	case len(format) == len("f4.npy") && format[2:] == ".npy":
		var file bytes.Buffer
		w, err := vectorfile.NewNpyWriter(&file, e, int64(n), int64(dimension))
		require.NoError(t, err)
		_, err = w.Write(rows)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return file.Bytes()
	}
	return binFile(rows, n, dimension)
}

func TestEveryFormatGivesItsRowsInChunksOfAnySize(t *testing.T) {
	for format, e := range endings {
		for _, shape := range [][2]int{{1, 1}, {2, 1}, {7, 3}, {1, 65_536}, {3, 65_536}, {1000, 17}, {14_000, 1}} {
			n, d := shape[0], shape[1]
			t.Run(fmt.Sprintf("%s %dx%d", format, n, d), func(t *testing.T) {
				want := noise(uint64(n+d), n*d*e.Size())
				m, err := rowsOf("x"+format, write(t, format, e, want, n, d))
				require.NoError(t, err)
				require.Equal(t, e, m.ElementType())
				require.Equal(t, d, m.Dimension())
				require.Equal(t, int64(n), m.Rows())
				for _, chunk := range []int{1, 7, 4096, n} {
					if n/chunk < 2000 {
						require.True(t, bytes.Equal(want, all(t, m, chunk)), "chunks of %d", chunk)
					}
				}
			})
		}
	}
}

func TestFilesWithoutRowsKeepTheirDimension(t *testing.T) {
	for format, e := range endings {
		if format == ".fvecs" || format == ".bvecs" {
			continue
		}
		m, err := rowsOf("x"+format, write(t, format, e, nil, 0, 65_536))
		require.NoError(t, err, format)
		require.Equal(t, 65_536, m.Dimension())
		require.Zero(t, m.Rows())
		n, err := m.ReadRows(make([]byte, m.RowBytes()), 0)
		require.Zero(t, n)
		require.ErrorIs(t, err, io.EOF)
	}
}

func TestReadRowsDistinguishesEndFromSmallBuffer(t *testing.T) {
	// ReadRows distinguishes the end of the rows from a buffer that is too small.
	m, err := rowsOf("x.u8bin", binFile([]byte{1, 2, 3, 4, 5, 6}, 2, 3))
	require.NoError(t, err)
	buffer := make([]byte, 9)
	for name, tc := range map[string]struct {
		room  int
		first int64
		n     int
		err   error
	}{
		"all rows and room left":   {room: 9, n: 2},
		"the last row":             {room: 9, first: 1, n: 1},
		"behind the last row":      {room: 9, first: 2, err: io.EOF},
		"far behind it":            {room: 9, first: 1 << 62, err: io.EOF},
		"no room":                  {room: 2, err: io.ErrShortBuffer},
		"no room, but none needed": {room: 0, first: 2, err: io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := m.ReadRows(buffer[:tc.room], tc.first)
			require.Equal(t, tc.n, n)
			require.ErrorIs(t, err, tc.err)
		})
	}
	_, err = m.ReadRows(buffer, -1)
	require.ErrorContains(t, err, "row -1")
}

// lines is a file of rows of one U8 element each after its dimension; the element is the low byte
// of the row's number.
type lines struct{}

const lineBytes = 5

func (lines) ReadAt(p []byte, at int64) (int, error) {
	for i := range p {
		switch row, place := (at+int64(i))/lineBytes, (at+int64(i))%lineBytes; place {
		case 0:
			p[i] = 1
		case 4:
			p[i] = byte(row * 7)
		default:
			p[i] = 0
		}
	}
	return len(p), nil
}

func TestRowsFarBehindFourGigabytesAreFound(t *testing.T) {
	const rows = 200_000_000_000
	m, err := vectorfile.NewRows("x.bvecs", lines{}, rows*lineBytes)
	require.NoError(t, err)
	require.Equal(t, int64(rows), m.Rows())
	for _, first := range []int64{1<<32 - 1, rows / 2, rows - 3} {
		got := make([]byte, 3)
		n, err := m.ReadRows(got, first)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.Equal(t, []byte{byte(first * 7), byte((first + 1) * 7), byte((first + 2) * 7)}, got)
	}
}

func TestReadingHoldsOnePieceAndNotTheFile(t *testing.T) {
	m, err := vectorfile.NewRows("x.bvecs", lines{}, 100_000_000*lineBytes)
	require.NoError(t, err)
	dst := make([]byte, 100_000)
	require.LessOrEqual(t, testing.AllocsPerRun(5, func() {
		_, err = m.ReadRows(dst, 5)
	}), 1.0)
	require.NoError(t, err)
}

// broken fails after its first bytes.
type broken struct {
	data []byte
	err  error
}

func (b broken) ReadAt(p []byte, at int64) (int, error) {
	if at > int64(len(b.data)) {
		return 0, b.err
	}
	if n := copy(p, b.data[at:]); n < len(p) {
		return n, b.err
	}
	return len(p), nil
}

func TestReadErrorsDifferFromFormatErrors(t *testing.T) {
	// A file that fails or shrinks while it is read gives another error than one with a wrong format.
	worn := errors.New("sector not found")
	for format, e := range endings {
		whole := write(t, format, e, noise(1, 40*e.Size()), 10, 4)
		for name, tc := range map[string]error{"shrinks": io.EOF, "fails": worn} {
			t.Run(format+" "+name, func(t *testing.T) {
				cut := len(whole) - 3*e.Size()
				m, err := vectorfile.NewRows("x"+format, broken{data: whole[:cut], err: tc}, int64(len(whole)))
				require.NoError(t, err)
				_, err = m.ReadRows(make([]byte, 9*m.RowBytes()), 0)
				require.NoError(t, err)
				_, err = m.ReadRows(make([]byte, 10*m.RowBytes()), 0)
				if errors.Is(tc, worn) {
					require.ErrorIs(t, err, worn)
					require.NotErrorIs(t, err, vectorfile.ErrFormat)
					return
				}
				require.Contains(t, refused(t, err, vectorfile.ErrFormat, int64(cut)), "shorter since it was opened")
			})
		}
	}
}

func TestHeadsThatCannotBeReadAreNoFormatErrors(t *testing.T) {
	worn := errors.New("sector not found")
	for format := range endings {
		_, err := vectorfile.NewRows("x"+format, broken{err: worn}, 1000)
		require.ErrorIs(t, err, worn, format)
		require.NotErrorIs(t, err, vectorfile.ErrFormat)
	}
	// Long enough for the head, too short for the search of the wrong row.
	file := prefixedFile(make([]byte, 8), 4, 1)
	file = binary.LittleEndian.AppendUint32(file, 2)
	_, err := vectorfile.NewRows("x.fvecs", &failsLater{data: append(file, make([]byte, 8)...), left: 2, err: worn}, int64(len(file)+8))
	require.ErrorIs(t, err, worn)
}

// failsLater answers a number of reads.
type failsLater struct {
	data []byte
	left int
	err  error
}

func (f *failsLater) ReadAt(p []byte, at int64) (int, error) {
	if f.left--; f.left < 0 {
		return 0, f.err
	}
	return bytes.NewReader(f.data).ReadAt(p, at)
}
