package jinja

// filter is a function of a value and arguments.
type filter struct {
	call func(r *run, v Value, a *callArguments) Value
}

// takesArguments makes a filter with a signature.
func takesArguments(name, params string, call func(r *run, v Value, a []Value) Value) *filter {
	s := takes(params)
	return &filter{func(r *run, v Value, a *callArguments) Value { return call(r, v, r.bind(name, &s, a)) }}
}

// ofCase makes a filter that changes the case of the text of whatever it is given.
func ofCase(name string, change func(string) string) *filter {
	return takesArguments(name, "", func(r *run, v Value, _ []Value) Value {
		if s, ok := v.(markup); ok {
			return markup{r.mapCase(s.str, change)}
		}
		return r.mapCase(r.text(v), change)
	})
}

var filters = map[string]*filter{
	"abs":            takesArguments("abs", "", filterAbs),
	"attr":           takesArguments("attr", "name", filterAttr),
	"batch":          takesArguments("batch", "linecount fill_with?", filterBatch),
	"capitalize":     ofCase("capitalize", capitalized),
	"center":         takesArguments("center", "width?", filterCenter),
	"count":          takesArguments("count", "", filterLength),
	"d":              takesArguments("default", "default_value? boolean?", filterDefault),
	"default":        takesArguments("default", "default_value? boolean?", filterDefault),
	"dictsort":       takesArguments("dictsort", "case_sensitive? by? reverse?", filterDictSort),
	"e":              takesArguments("escape", "", filterEscape),
	"escape":         takesArguments("escape", "", filterEscape),
	"first":          takesArguments("first", "", filterFirst),
	"float":          takesArguments("float", "default?", filterFloat),
	"forceescape":    takesArguments("forceescape", "", filterForceEscape),
	"format":         {filterFormat},
	"groupby":        takesArguments("groupby", "attribute default? case_sensitive?", filterGroupBy),
	"indent":         takesArguments("indent", "width? first? blank?", filterIndent),
	"int":            takesArguments("int", "default? base?", filterInt),
	"items":          takesArguments("items", "", filterItems),
	"join":           takesArguments("join", "d? attribute?", filterJoin),
	"last":           takesArguments("last", "", filterLast),
	"length":         takesArguments("length", "", filterLength),
	"list":           takesArguments("list", "", filterList),
	"lower":          ofCase("lower", lowered),
	"map":            {filterMap},
	"max":            takesArguments("max", "case_sensitive? attribute?", filterMax),
	"min":            takesArguments("min", "case_sensitive? attribute?", filterMin),
	"reject":         {filterReject},
	"rejectattr":     {filterRejectAttr},
	"replace":        takesArguments("replace", "old new count?", filterReplace),
	"reverse":        takesArguments("reverse", "", filterReverse),
	"round":          takesArguments("round", "precision? method?", filterRound),
	"safe":           takesArguments("safe", "", filterSafe),
	"select":         {filterSelect},
	"selectattr":     {filterSelectAttr},
	"slice":          takesArguments("slice", "slices fill_with?", filterSlice),
	"sort":           takesArguments("sort", "reverse? case_sensitive? attribute?", filterSort),
	"string":         takesArguments("string", "", filterString),
	"sum":            takesArguments("sum", "attribute? start?", filterSum),
	"title":          takesArguments("title", "", filterTitle),
	"tojson":         takesArguments("tojson", "ensure_ascii? indent? separators? sort_keys?", filterToJSON),
	"trim":           takesArguments("trim", "chars?", filterTrim),
	"unique":         takesArguments("unique", "case_sensitive? attribute?", filterUnique),
	"upper":          ofCase("upper", uppered),
	"wordcount":      takesArguments("wordcount", "", filterWordCount),
	"filesizeformat": nil, "pprint": nil, "random": nil, "striptags": nil, "truncate": nil, "urlencode": nil, "urlize": nil,
	"wordwrap": nil, "xmlattr": nil,
}

// filter applies one. Each application is a step.
func (r *run) filter(f *filter, name string, v Value, a *callArguments) Value {
	r.step(1)
	if f == nil {
		r.fail("the filter %q is unknown or not supported", name)
	}
	return f.call(r, v, a)
}

func filterDefault(_ *run, v Value, a []Value) Value {
	_, gone := v.(*undefined)
	if gone || flag(a[1]) && !truth(v) {
		return or(a[0], own(""))
	}
	return v
}

func filterAttr(r *run, v Value, a []Value) Value {
	name := r.string(a[0], "attr: the name")
	r.defined(v)
	if m, ok := r.member(v, name); ok {
		return m
	}
	return noAttribute(v, name)
}

func filterLength(r *run, v Value, _ []Value) Value {
	n, ok := length(v)
	if !ok {
		r.fail("object of type '%s' has no len()", typeName(v))
	}
	return n
}

func filterSafe(r *run, v Value, _ []Value) Value { return markup{r.text(v)} }

func filterEscape(r *run, v Value, _ []Value) Value {
	if _, safe := v.(markup); safe {
		return v
	}
	return filterForceEscape(r, v, nil)
}

func filterForceEscape(r *run, v Value, _ []Value) Value {
	return markup{r.mapRuns(r.text(v), escaped.Replace)}
}

func filterString(r *run, v Value, _ []Value) Value {
	if _, safe := v.(markup); safe {
		return v
	}
	return r.text(v)
}

func filterList(r *run, v Value, _ []Value) Value {
	items := r.items(v)
	return &List{items}
}
