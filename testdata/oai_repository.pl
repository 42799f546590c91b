#!/usr/bin/perl
# An OAI-PMH repository out of the classes of HTTP::OAI (libhttp-oai-perl), written for
# bridge's tests: the library checks the requests and writes the answers; what stands
# here only looks records up.
#
#     oai_repository.pl FILE
#
# serves http://127.0.0.1:PORT/oai, prints this URL, and ends with its standard input.
# FILE is read anew for each request:
#
#     {"page": 10, "deleted": "persistent", "sets": {"maps": "Maps"},
#      "records": [{"identifier": "oai:…", "datestamp": "2020-01-01T00:00:00Z", "sets": ["maps"],
#                   "deleted": 0, "dc": {"title": ["…"]}, "xml": {"mods": "<mods …>"}}]}
#
# A record has oai_dc out of "dc", and each format of "xml". Tokens are stateless: they
# hold the place after the last record that was told.
use strict;
use warnings;
use utf8;
use Encode qw(decode_utf8);
use HTTP::OAI;
use HTTP::OAI::Metadata::OAI_DC;
use HTTP::OAI::Repository qw(:validate);
use HTTP::Request;
use HTTP::Response;
use IO::Select;
use IO::Socket::INET;
use JSON::PP;
use URI;
use XML::LibXML;

my $file = shift or die "usage: oai_repository.pl FILE\n";
my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 16) or die "listen: $!";
my $base = 'http://127.0.0.1:' . $server->sockport . '/oai';
$| = 1;
print "$base\n";

my $ready = IO::Select->new($server, \*STDIN);
while (1) {
	for my $fh ($ready->can_read) {
		exit 0 if $fh == \*STDIN;
		my $client = $server->accept or next;
		eval { serve($client); 1 } or warn $@;
		close $client;
	}
}

# serve reads one request and answers it; a POST has a form.
sub serve {
	my ($client) = @_;
	my $head = '';
	while (my $line = <$client>) {
		last if $line =~ /^\r?\n$/;
		$head .= $line;
	}
	my $request = HTTP::Request->parse($head) or return;
	my $query = URI->new($request->uri)->query // '';
	if ($request->method eq 'POST') {
		read $client, $query, $request->header('Content-Length') // 0;
	}
	my $u = URI->new($base);
	$u->query($query);
	my @pairs = map { decode_utf8($_) } $u->query_form;
	my $body = answer($u, \@pairs)->toDOM->toString(0);
	print $client HTTP::Response->new(200, 'OK', [
		'Content-Type' => 'text/xml; charset=utf-8', 'Content-Length' => length $body, 'Connection' => 'close',
	], $body)->as_string("\r\n") =~ s/^200/HTTP\/1.1 200/r;
}

sub failure {
	my ($url, @errors) = @_;
	my $r = HTTP::OAI::Response->new(requestURL => $url);
	$r->error(@errors);
	return $r;
}

sub failed { return HTTP::OAI::Error->new(code => shift, message => shift) }

sub answer {
	my ($url, $pairs) = @_;
	my %args = @$pairs;
	return failure($url, failed('badArgument', 'an argument stands twice')) if @$pairs != 2 * keys %args;
	if (my @errors = validate_request(%args)) {
		return failure($url, @errors);
	}
	open my $in, '<', $file or die "$file: $!";
	my $data = JSON::PP->new->utf8->decode(do { local $/; <$in> });
	my ($content, $error) = main->can($args{verb})->($data, \%args);
	return failure($url, $error) if $error;
	my $r = HTTP::OAI::Response->new(requestURL => $url, verb => $args{verb});
	$r->content($content);
	return $r;
}

sub Identify {
	my ($data) = @_;
	return HTTP::OAI::Identify->new(
		baseURL => $base, adminEmail => 'admin@perl.example', repositoryName => 'A repository in Perl', protocolVersion => '2.0', granularity => 'YYYY-MM-DDThh:mm:ssZ',
		deletedRecord => $data->{deleted}, earliestDatestamp => '2020-01-01T00:00:00Z',
	);
}

sub prefixes {
	my ($record) = @_;
	return sort 'oai_dc', keys %{ $record->{xml} // {} };
}

sub ListMetadataFormats {
	my ($data, $args) = @_;
	my @records = @{ $data->{records} };
	if (my $id = $args->{identifier}) {
		@records = grep { $_->{identifier} eq $id } @records or return (undef, failed('idDoesNotExist', $id));
	}
	my %known = map { $_ => 1 } 'oai_dc', map { prefixes($_) } @records;
	my $l = HTTP::OAI::ListMetadataFormats->new;
	for (sort keys %known) {
		my $ns = $_ eq 'oai_dc' ? 'http://www.openarchives.org/OAI/2.0/oai_dc/' : 'http://www.loc.gov/mods/v3';
		my $xsd = $_ eq 'oai_dc' ? 'http://www.openarchives.org/OAI/2.0/oai_dc.xsd' : 'http://www.loc.gov/standards/mods/v3/mods-3-8.xsd';
		$l->metadataFormat(HTTP::OAI::MetadataFormat->new(metadataPrefix => $_, schema => $xsd, metadataNamespace => $ns));
	}
	return $l;
}

sub ListSets {
	my ($data) = @_;
	return (undef, failed('noSetHierarchy', 'there are no sets')) unless %{ $data->{sets} // {} };
	my $l = HTTP::OAI::ListSets->new;
	$l->set(HTTP::OAI::Set->new(setSpec => $_, setName => $data->{sets}{$_})) for sort keys %{ $data->{sets} };
	return $l;
}

sub GetRecord {
	my ($data, $args) = @_;
	my ($record) = grep { $_->{identifier} eq $args->{identifier} } @{ $data->{records} } or return (undef, failed('idDoesNotExist', $args->{identifier}));
	grep { $_ eq $args->{metadataPrefix} } prefixes($record) or return (undef, failed('cannotDisseminateFormat', $args->{metadataPrefix}));
	my $l = HTTP::OAI::GetRecord->new;
	$l->record(record($record, $args->{metadataPrefix}));
	return $l;
}

sub ListIdentifiers { return list(HTTP::OAI::ListIdentifiers->new, @_) }
sub ListRecords     { return list(HTTP::OAI::ListRecords->new,     @_) }

sub list {
	my ($l, $data, $args) = @_;
	my $after = '';
	if (defined $args->{resumptionToken}) {
		my %place = URI->new('?' . $args->{resumptionToken})->query_form;
		$after = delete $place{after};
		return (undef, failed('badResumptionToken', 'it is none of ours')) unless defined $after;
		$args = \%place;
	}
	my $prefix = $args->{metadataPrefix};
	my @all;
	for my $r (@{ $data->{records} }) {
		my $day = length($args->{from} // $args->{until} // '') == 10;
		my $stamp = $day ? substr($r->{datestamp}, 0, 10) : $r->{datestamp};
		next if defined $args->{from} && $stamp lt $args->{from} || defined $args->{until} && $stamp gt $args->{until};
		next if defined $args->{set} && !grep { $_ eq $args->{set} || index($_, "$args->{set}:") == 0 } @{ $r->{sets} // [] };
		push @all, $r if grep { $_ eq $prefix } prefixes($r);
	}
	return (undef, failed('noRecordsMatch', 'no records match')) unless @all || $after ne '';
	my $key = sub { "$_[0]{datestamp} $_[0]{identifier}" };
	my @rest = grep { $key->($_) gt $after } sort { $key->($a) cmp $key->($b) } @all;
	my @page = splice @rest, 0, $data->{page};
	for (@page) {
		$l->isa('HTTP::OAI::ListRecords') ? $l->record(record($_, $prefix)) : $l->identifier(header($_));
	}
	if (@rest) {
		my $next = URI->new('?');
		$next->query_form({ %$args, after => $key->($page[-1]) });
		delete $args->{verb};
		$l->resumptionToken(HTTP::OAI::ResumptionToken->new(resumptionToken => $next->query));
	}
	return $l;
}

sub header {
	my ($r) = @_;
	return HTTP::OAI::Header->new(
		identifier => $r->{identifier}, datestamp => $r->{datestamp}, setSpec => $r->{sets} // [],
		$r->{deleted} ? (status => 'deleted') : (),
	);
}

sub record {
	my ($r, $prefix) = @_;
	my $record = HTTP::OAI::Record->new(header => header($r));
	if (!$r->{deleted}) {
		$record->metadata($prefix eq 'oai_dc' ? HTTP::OAI::Metadata::OAI_DC->new(dc => $r->{dc}) : HTTP::OAI::Metadata->new(
			dom => XML::LibXML->load_xml(string => qq{<metadata xmlns="http://www.openarchives.org/OAI/2.0/">$r->{xml}{$prefix}</metadata>})));
	}
	return $record;
}
