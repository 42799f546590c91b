package publish

// LimitEntries makes documents of at most so many entries, for the tests beside this package.
func (p *Publisher) LimitEntries(n int) { p.limits.Entries, p.packageLimits.Entries = n, n }
