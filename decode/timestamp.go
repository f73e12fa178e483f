package decode

// parseTime reads a timestamp as Postgres prints it with DateStyle ISO
// (EncodeDateTime in src/backend/utils/adt/datetime.c): a year of four digits or
// more, a fraction of one to six digits or none, where zoned an offset of hours or
// with minutes or with seconds too, and " BC".
//
// It returns milliseconds since the Unix epoch, rounded down; a negative number
// for infinity, -infinity and years BC. ok is false for any other text.
func parseTime(text []byte, zoned bool) (ms int64, ok bool) {
	if string(text) == "infinity" || string(text) == "-infinity" {
		return -1, true
	}
	year, i := int64(0), 0
	for ; i < len(text) && text[i]-'0' <= 9; i++ {
		if i == 6 { // the greatest is 294276
			return 0, false
		}
		year = year*10 + int64(text[i]-'0')
	}
	// -MM-DD HH:MM:SS
	const rest = 15
	if i < 4 || year == 0 || len(text)-i < rest {
		return 0, false
	}
	p := text[i : i+rest]
	month, day, hour, minute, second := two(p, 1), two(p, 4), two(p, 7), two(p, 10), two(p, 13)
	if p[0] != '-' || p[3] != '-' || p[6] != ' ' || p[9] != ':' || p[12] != ':' ||
		month-1 > 11 || day-1 > 30 || hour > 24 || minute > 59 || second > 60 {
		return 0, false
	}
	i += rest
	fraction, i, ok := parseFraction(text, i)
	if !ok {
		return 0, false
	}
	offset := int64(0)
	if zoned {
		if offset, i, ok = parseOffset(text, i); !ok {
			return 0, false
		}
	}
	if string(text[i:]) == " BC" {
		return -1, true
	}
	if i != len(text) {
		return 0, false
	}
	s := days(year, int64(month), int64(day))*86400 + int64(hour)*3600 + int64(minute)*60 + int64(second) - offset
	return s*1000 + fraction, true
}

// parseFraction reads ".123456" at i as whole milliseconds.
func parseFraction(text []byte, i int) (ms int64, next int, ok bool) {
	if i >= len(text) || text[i] != '.' {
		return 0, i, true
	}
	n := 0
	for i++; i < len(text) && text[i]-'0' <= 9; i++ {
		if n < 3 {
			ms = ms*10 + int64(text[i]-'0')
		}
		n++
	}
	for k := n; k < 3; k++ {
		ms *= 10
	}
	return ms, i, 1 <= n && n <= 6
}

// parseOffset reads +HH, +HH:MM or +HH:MM:SS at i, as seconds.
func parseOffset(text []byte, i int) (s int64, next int, ok bool) {
	if i >= len(text) || text[i] != '+' && text[i] != '-' {
		return 0, i, false
	}
	negative := text[i] == '-'
	unit := int64(3600)
	for i++; ; i++ {
		v := two(text, i)
		if v > 59 {
			return 0, i, false
		}
		s += int64(v) * unit
		i += 2
		unit /= 60
		if unit == 0 || i >= len(text) || text[i] != ':' {
			break
		}
	}
	if negative {
		s = -s
	}
	return s, i, true
}

// two reads two digits at i; a number above 99 means that they are not there.
func two(b []byte, i int) uint {
	if i+1 >= len(b) {
		return 100
	}
	hi, lo := uint(b[i])-'0', uint(b[i+1])-'0'
	if hi > 9 || lo > 9 {
		return 100
	}
	return hi*10 + lo
}

// days counts from 1970-01-01 in the proleptic Gregorian calendar, for years from 1
// on. The year is taken to begin in March, so that a leap day is its last.
func days(year, month, day int64) int64 {
	month -= 3
	if month < 0 {
		month += 12
		year--
	}
	ofYear := (153*month+2)/5 + day - 1
	return year*365 + year/4 - year/100 + year/400 + ofYear - 719468
}
