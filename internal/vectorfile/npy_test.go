package vectorfile_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
)

func TestVectorsThatNumpyWrote(t *testing.T) {
	for name, tc := range map[string]struct {
		e               vectorfile.ElementType
		rows, dimension int
		first           int
	}{
		"f4.npy":               {vectorfile.F32, 3, 4, -3},
		"f2.npy":               {vectorfile.F16, 3, 4, -3},
		"i1.npy":               {vectorfile.I8, 3, 4, -3},
		"u1.npy":               {vectorfile.U8, 3, 4, 0},
		"f4-one-dimension.npy": {vectorfile.F32, 1, 5, -3},
		"f2-one-dimension.npy": {vectorfile.F16, 1, 5, -3},
		"i1-one-dimension.npy": {vectorfile.I8, 1, 5, -3},
		"u1-one-dimension.npy": {vectorfile.U8, 1, 5, 0},
		"no-rows.npy":          {vectorfile.F32, 0, 4, -3},
		"one-element.npy":      {vectorfile.F32, 1, 1, -3},
		"one-column.npy":       {vectorfile.F32, 5, 1, -3},
		"version-1.npy":        {vectorfile.F32, 3, 4, -3},
		"version-2.npy":        {vectorfile.F32, 3, 4, -3},
		"version-3.npy":        {vectorfile.F32, 3, 4, -3},
		"f4.fvecs":             {vectorfile.F32, 3, 4, -3},
		"i4.ivecs":             {vectorfile.F32, 3, 4, -3},
		"u1.bvecs":             {vectorfile.U8, 3, 4, 0},
		"f4.fbin":              {vectorfile.F32, 3, 4, -3},
		"f2.f16bin":            {vectorfile.F16, 3, 4, -3},
		"u1.u8bin":             {vectorfile.U8, 3, 4, 0},
		"i1.i8bin":             {vectorfile.I8, 3, 4, -3},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := rowsOf(name, golden(t, name))
			require.NoError(t, err)
			require.Equal(t, tc.e, m.ElementType())
			require.Equal(t, tc.dimension, m.Dimension())
			require.Equal(t, int64(tc.rows), m.Rows())
			require.Equal(t, numbers(tc.e, tc.first, tc.rows*tc.dimension), append([]byte(nil), all(t, m, 2)...))
		})
	}
}

func TestCodesThatNumpyWrote(t *testing.T) {
	for name, e := range map[string]vectorfile.ElementType{"u1": vectorfile.U8, "u2": vectorfile.U16, "u4": vectorfile.U32} {
		for suffix, shape := range map[string][2]int{".npy": {3, 4}, "-one-dimension.npy": {5, 1}} {
			m, err := codesOf(name+suffix, golden(t, name+suffix))
			require.NoError(t, err)
			require.Equal(t, e, m.ElementType())
			require.Equal(t, int64(shape[0]), m.Rows())
			require.Equal(t, shape[1], m.Dimension())
			require.Equal(t, numbers(e, 0, shape[0]*shape[1]), all(t, m, 2))
		}
	}
}

func TestArraysThatNumpyWroteAndThatAreNoVectors(t *testing.T) {
	for name, want := range map[string]string{
		"refused-fortran.npy":          "numpy.ascontiguousarray",
		"refused-big-endian.npy":       `big endian (">f4")`,
		"refused-object.npy":           "Python objects",
		"refused-record.npy":           "records",
		"refused-void.npy":             "bfloat16",
		"refused-f8.npy":               `"<f8", and vectors are f4, f2, u1 or i1: save x.astype('<f4')`,
		"refused-i8.npy":               "<i8",
		"refused-bool.npy":             "|b1",
		"refused-scalar.npy":           "0 dimensions",
		"refused-three-dimensions.npy": "3 dimensions",
		"refused-no-columns.npy":       "rows of 0 elements",
		"refused-archive.npy":          ".npz",
		"u2.npy":                       "<u2",
	} {
		t.Run(name, func(t *testing.T) {
			data := golden(t, name)
			_, err := rowsOf(name, data)
			at := int64(0)
			if name != "refused-archive.npy" {
				at = int64(strings.Index(string(data), map[string]string{
					"refused-fortran.npy": "True", "refused-scalar.npy": "()", "refused-three-dimensions.npy": "(2,", "refused-no-columns.npy": "(3,",
					"refused-record.npy": "[(",
				}[name]))
				if at == 0 {
					at = int64(bytes.Index(data, []byte("'descr': ")) + len("'descr': "))
				}
			}
			require.Contains(t, refused(t, err, vectorfile.ErrUnsupported, at), want)
		})
	}
	for _, name := range []string{"f4.npy", "i1.npy", "refused-i8.npy"} {
		_, err := codesOf(name, golden(t, name))
		require.ErrorContains(t, err, "codes are u1, u2 or u4")
	}
}

func TestHeadersOfOtherWritersAreRead(t *testing.T) {
	for name, header := range map[string]string{
		"keys in another order":        "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}",
		"double quotes and no spaces":  `{"descr":"<f4","fortran_order":False,"shape":(2,3)}`,
		"lengths as Python 2 has them": "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
		"a comma behind the shape":     "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3,), }",
		"no padding":                   "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
		"padding of any kind":          " {\t'descr' :\n'<f4' , 'fortran_order': False, 'shape': ( 2 , 3 ) , } \n\n ",
		"the largest header":           npyHeader("<f4", "(2, 3)") + strings.Repeat(" ", 65_535-len(npyHeader("<f4", "(2, 3)"))),
	} {
		t.Run(name, func(t *testing.T) {
			want := numbers(vectorfile.F32, 0, 6)
			m, err := rowsOf("x.npy", npyFile(header, want))
			require.NoError(t, err)
			require.Equal(t, [2]int{2, 3}, [2]int{int(m.Rows()), m.Dimension()})
			require.Equal(t, want, all(t, m, 1))
		})
	}
	for _, descr := range []string{"|u1", "<u1", ">u1", "=u1", "u1"} {
		m, err := rowsOf("x.NPY", npyFile(npyHeader(descr, "(2, 3)"), make([]byte, 6)))
		require.NoError(t, err, "one byte has no order: %s", descr)
		require.Equal(t, vectorfile.U8, m.ElementType())
	}
}

func TestNpyRefusesDamagedArrays(t *testing.T) {
	// Damaged and hostile arrays are refused, and the error says where they are wrong.
	good := npyHeader("<f4", "(2, 3)")
	overflows := npyHeader("<f4", "(4611686018427387905, 4)")
	data := make([]byte, 24)
	start := int64(10 + len(good))
	long := func(version byte, length uint32) []byte {
		return append([]byte("\x93NUMPY"), version, 0, byte(length), byte(length>>8), byte(length>>16), byte(length>>24))
	}
	at := func(header, part string) int64 { return 10 + int64(strings.Index(header, part)) }
	header := func(text, part string, kind error, says string) (c struct {
		file []byte
		kind error
		at   int64
		says string
	}) {
		c.file, c.kind, c.at, c.says = npyFile(text, data), kind, at(text, part), says
		return c
	}
	bad, no := vectorfile.ErrFormat, vectorfile.ErrUnsupported
	for name, tc := range map[string]struct {
		file []byte
		kind error
		at   int64
		says string
	}{
		"empty":                        {nil, bad, 0, "does not begin"},
		"only the magic":               {[]byte("\x93NUMPY"), bad, 0, "does not begin"},
		"nine bytes":                   {npyFile(good, data)[:9], bad, 0, "does not begin"},
		"another file":                 {[]byte("SIMPLE  =                    T"), bad, 0, "does not begin"},
		"a later version":              {append([]byte("\x93NUMPY\x04\x00\x00\x00\x00\x00"), data...), no, 6, "version 4.0"},
		"version 1.1":                  {append([]byte("\x93NUMPY\x01\x01\x00\x00"), data...), no, 6, "version 1.1"},
		"header beyond the file":       {npyFile(good, data)[:40], bad, 8, "30 are left"},
		"version 2 without length":     {long(2, 0)[:11], bad, 8, "0 are left"},
		"header of 4 GiB":              {long(2, 1<<32-1), no, 8, "4294967295 bytes"},
		"header one too long":          {append(long(3, 65_536), make([]byte, 70_000)...), no, 8, "65536 bytes"},
		"a byte too few":               {npyFile(good, data[:23]), bad, start, "cut"},
		"no data":                      {npyFile(good, nil), bad, start, "cut"},
		"a byte too many":              {npyFile(good, make([]byte, 25)), bad, start + 24, "1 bytes follow"},
		"two arrays":                   {append(npyFile(good, data), npyFile(good, data)...), bad, start + 24, "one array to a file"},
		"no header":                    header("", "", bad, "'{' is missing"),
		"an empty dictionary":          header("{}", "", bad, `no "descr"`),
		"a list":                       header("['descr']", "[", bad, "'{' is missing"),
		"binary header":                header("\x00\xff\x80", "", bad, "'{' is missing"),
		"no end":                       header("{'descr': '<f4', !", "!", bad, "a string is missing"),
		"no shape":                     header("{'descr': '<f4', 'fortran_order': False, }", "", bad, `no "shape"`),
		"no order":                     header("{'descr': '<f4', 'shape': (2, 3), }", "", bad, `no "fortran_order"`),
		"a key twice":                  header("{'descr': '<f4', 'shape': (2, 3), 'fortran_order': False, 'shape': (1, 6)}", "'shape': (1", bad, "twice"),
		"an unknown key":               header("{'descr': '<f4', 'shape': (2, 3), 'fortran_order': False, 'x': 1}", "'x'", bad, "unknown"),
		"more behind it":               header(good+"0", "0", bad, "continues after"),
		"a program":                    header("__import__('os').system('x')", "__", bad, "'{' is missing"),
		"a call for a value":           header("{'descr': eval('1')", "eval", bad, "a string is missing"),
		"an escape":                    header(`{'de\x73cr': '<f4'}`, "'de", bad, "a plain string"),
		"a string without end":         header("{'descr", "'", bad, "a plain string"),
		"order as a number":            header("{'fortran_order': 0}", "0", bad, "True or False"),
		"order in small letters":       header("{'fortran_order': false}", "false", bad, "True or False"),
		"a negative length":            header(npyHeader("<f4", "(-1, 3)"), "-1", bad, "negative"),
		"a length beyond 2^63":         header(npyHeader("<f4", "(9223372036854775808, 3)"), "9223", bad, "beyond 2^63"),
		"rows that overflow":           {npyFile(overflows, data), bad, int64(10 + len(overflows)), "cut"},
		"a length with a fraction":     header(npyHeader("<f4", "(2.0, 3)"), ".", bad, "')' is missing"),
		"a length with a zero":         header(npyHeader("<f4", "(02, 3)"), "02", bad, "a length"),
		"a shape that is a number":     header(npyHeader("<f4", "6"), "6", bad, "'(' is missing"),
		"a shape in brackets only":     header(npyHeader("<f4", "(6)"), "(6", bad, "no tuple"),
		"a shape of shapes":            header(npyHeader("<f4", "((2, 3), 1)"), "(2", bad, "a length"),
		"many nested shapes":           header(npyHeader("<f4", "( "+strings.Repeat("(", 60_000)), "((", bad, "a length"),
		"a rank of thousands":          header(npyHeader("<f4", "("+strings.Repeat("1,", 30_000)+")"), "(1", no, "30000 dimensions"),
		"one column too many":          header(npyHeader("|u1", "(0, 65537)"), "(0", no, "65537 elements"),
		"a long array":                 header(npyHeader("<f4", "(65537,)"), "(65537", no, "reshape(-1, 1)"),
		"an empty array":               header(npyHeader("<f4", "(0,)"), "(0", no, "rows of 0"),
		"no byte order":                header(npyHeader("f4", "(2, 3)"), "'f4'", no, "which order"),
		"the writer's byte order":      header(npyHeader("=f4", "(2, 3)"), "'=f4'", no, "which order"),
		"big endian half":              header(npyHeader(">f2", "(2, 6)"), "'>f2'", no, "big endian"),
		"an empty type":                header(npyHeader("", "(2, 3)"), "''", no, "vectors are"),
		"a type of text":               header(npyHeader("<U8", "(2, 3)"), "'<U8'", no, "vectors are"),
		"a type that clears terminals": header(npyHeader("\x1b[2J", "(2, 3)"), "'\x1b", no, `"\x1b[2J"`),
		"a record in a tuple":          header("{'descr': ('<f4', (3,)), 'fortran_order': False, 'shape': (2,)}", "('<f4'", no, "records"),
		"Fortran order and one rank":   header("{'descr': '<f4', 'fortran_order': True, 'shape': (6,)}", "True", no, "Fortran"),
		"a header of the wrong sizes":  {npyFile(npyHeader("<f4", "(2, 4)"), data), bad, start, "2 rows of 16 bytes and the file has 24"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rowsOf("x.npy", tc.file)
			require.Contains(t, refused(t, err, tc.kind, tc.at), tc.says)
		})
	}
}

func TestEveryByteOfAnArrayIsNeeded(t *testing.T) {
	for _, name := range []string{"f4.npy", "version-2.npy", "f4.fvecs", "u1.bvecs", "i4.ivecs", "f4.fbin", "i1.i8bin"} {
		data := golden(t, name)
		for n := range data {
			if m, err := rowsOf(name, data[:n]); err == nil {
				// The rest of a file with a dimension before every row may be whole rows.
				require.Contains(t, name, "vecs", "cut to %d bytes", n)
				require.Less(t, m.Rows(), int64(3))
			}
		}
		if strings.HasSuffix(name, "vecs") {
			continue
		}
		_, err := rowsOf(name, append(append([]byte(nil), data...), 0))
		require.ErrorIs(t, err, vectorfile.ErrFormat, "%s and a byte", name)
	}
}
